#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/grid.h"
#include "ops/iteration.h"
#include "ops/kernel_table.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// How a matrix lies: which neighbours are side by side.
enum class Layout : uint8_t { kByRows, kByColumns, kApart };

/// Of the last two dimensions.
Layout layout_of(const View& matrices);
View transposed(View matrices);  ///< the last two dimensions change places

/// Bytes of a copy that take as long as one product: how launches of products say how large they are.
inline constexpr double kBytesOfProduct = 0.2;

/// A tile of one number.
tile::Expr filled(tile::Builder& builder, DType dtype, double value, const tile::Index& rows,
                  const tile::Index& cols);

/// Whether products of that type are computed as those of pairs (tile::Opcode::kMatmulPairs): of i8
/// everywhere, and of bf16 where the processor has an instruction.
bool multiplies_pairs(DType dtype);

/// Along which dimension of matrices neighbours are pairs.
enum class PairsAlong : uint8_t { kRows, kCols };
struct Pairs {
  PairsAlong along;
  bool are_words;  ///< of memory, of 32 bits, the first number in the lower half
};
/// Those that products of such matrices are computed of, if any.
std::optional<Pairs> pairs_of(const View& matrices, PairsAlong along);
void add_to(KernelTable::Key& key, const std::optional<Pairs>& pairs);

/// Matrices of one layout in the last two dimensions of a buffer of a kernel; or, to be copied as pairs, in
/// two: of the first number of each, and of the second ones, or of whole pairs.
class Matrices {
 public:
  Matrices(tile::Builder& builder, const std::string& name, DType dtype, Layout layout,
           const std::vector<tile::Index>& batch, const tile::Index& rows, const tile::Index& cols,
           std::optional<Pairs> pairs = std::nullopt);

  /// Part of the matrix at `batch`, in another type perhaps. Not of pairs.
  tile::Expr tile(const std::vector<tile::Index>& batch, const tile::Index& row, const tile::Index& col,
                  const tile::Index& rows, const tile::Index& cols, DType dtype) const;
  /// The same to a local buffer of that type from the start of the last two dimensions on, at `to` of
  /// the others. Of pairs, which are i32, rows or columns are half as many; where they are an odd number the
  /// last pair's second number is 0.
  void copy(const std::vector<tile::Index>& batch, const tile::Index& row, const tile::Index& col,
            const tile::Index& rows, const tile::Index& cols, DType dtype, int local,
            const std::vector<tile::Index>& to = {}) const;

  /// The arguments that the buffers take.
  static void add_argument(jit::PackedArguments& arguments, const View& matrices, Layout layout,
                           std::optional<Pairs> pairs = std::nullopt);

 private:
  tile::Expr pairs_at(const std::vector<tile::Place>& at, const tile::Index& rows, const tile::Index& cols,
                      bool have_second) const;

  tile::Builder& builder_;
  const DType dtype_;
  const bool turned_;
  const std::optional<Pairs> pairs_;
  tile::Index whole_ = 0;  ///< how many pairs have both numbers
  int buffer_ = -1, second_ = -1;
};

/// The buffer of panels of a matrix, batch x panels x k x columns; of pairs, `k` is how many.
int panel_buffer(tile::Builder& builder, const std::string& name, DType dtype,
                 const std::vector<tile::Index>& batch, const tile::Index& k, const tile::Index& n,
                 int64_t columns);

/// The panels of matrices, batch x k x n, in contiguous memory: `columns` columns side by side for all k, and
/// 0 in columns after the last. Those of bf16 or i8 may be of i32: of pairs.
View panels_of(const View& matrices, DType dtype, int64_t columns, void* memory);
/// Packs matrices into such panels.
Launch pack(const View& matrices, const View& panels);
/// Both, in temporary memory.
View pack_panels(const View& matrices, DType dtype, int64_t columns, const TakeMemory& take,
                 std::vector<Launch>& launches);

}  // namespace anynpu::ops
