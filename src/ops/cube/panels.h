#pragma once

#include <cstdint>
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

/// Matrices of one layout in a buffer of a kernel, the last two of its dimensions.
class Matrices {
 public:
  Matrices(tile::Builder& builder, const std::string& name, DType dtype, Layout layout,
           const std::vector<tile::Index>& batch, const tile::Index& rows, const tile::Index& cols);

  /// Part of the matrix at `batch`, in another type perhaps.
  tile::Expr tile(const std::vector<tile::Index>& batch, const tile::Index& row, const tile::Index& col,
                  const tile::Index& rows, const tile::Index& cols, DType dtype) const;

  /// The argument that such a buffer takes.
  static void add_argument(jit::PackedArguments& arguments, const View& matrices, Layout layout);

 private:
  tile::Builder& builder_;
  bool turned_;
  int buffer_;
};

/// Which neighbours in a matrix are pairs.
enum class PairsAlong : uint8_t { kRows, kCols };

/// Matrices of bf16 or i8, which kernels copy as pairs (tile::Opcode::kMatmulPairs) of neighbours along a
/// dimension: half as many. Where they are an odd number, the last pair's second number is 0.
class PairedMatrices {
 public:
  PairedMatrices(tile::Builder& builder, const std::string& name, DType dtype, Layout layout,
                 const std::vector<tile::Index>& batch, const tile::Index& rows, const tile::Index& cols,
                 PairsAlong along);

  /// Copies rows x cols pairs, from the one at (row, col) on, to the start of a local buffer of i32.
  void copy(const std::vector<tile::Index>& batch, const tile::Index& row, const tile::Index& col,
            const tile::Index& rows, const tile::Index& cols, int local) const;

  /// The arguments that such buffers take.
  static void add_arguments(jit::PackedArguments& arguments, const View& matrices, Layout layout,
                            PairsAlong along);

 private:
  tile::Expr pairs(const std::vector<tile::Place>& at, const tile::Index& rows, const tile::Index& cols,
                   bool have_second) const;

  tile::Builder& builder_;
  DType dtype_;
  bool turned_, along_last_;
  tile::Index seconds_;  ///< how many pairs along that dimension have both numbers
  int first_, second_;   ///< buffers of every second number, from the first and from the second on
};

/// Whether panels of that type of matrices of this one hold pairs along k.
bool hold_pairs(DType panels, DType matrices);

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
