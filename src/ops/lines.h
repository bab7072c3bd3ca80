#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"
#include "ops/line.h"
#include "ops/operand.h"

namespace anynpu::ops {

/// A function of lines: of the elements along one dimension, each line for itself. Written once as a generic
/// lambda over what Along gives: over tile values it emits code, over Line it is the reference, which bounds
/// the code's error too. An operand or a result that has one element for a line is a line of length 1.
struct LineFormula {
  size_t arguments, results;
  std::function<std::vector<tile::Expr>(const TilesAlong&, std::span<const tile::Expr>)> emit;
  std::function<std::vector<Line>(LinesAlong, std::span<const Line>)> reference;
};

/// What a result, or an operand, is.
enum class Holds : uint8_t {
  kCommon,    ///< of the common type
  kPosition,  ///< i64
  kTruth,     ///< bool
};

/// An operator of lines. Results are rounded once.
struct LineOp {
  std::string_view name, doc;  ///< `doc`: what it computes of a line
  LineFormula formula;         ///< of the operands, then the numbers
  int operands = 1;
  int numbers = 0;
  uint8_t one_for_line = 0;       ///< bit i: operand i has one element for a line
  uint8_t short_results = 0;      ///< bit i: result i has one element for a line
  DTypes dtypes = kAllFloats;     ///< common types that there are kernels for
  std::vector<Holds> given = {};  ///< of each result; empty: all are of the common type
  std::vector<Holds> taken = {};  ///< the same of operands
  bool widens = false;            ///< of integers and bool the common type is i64, unless a call says another
  bool in_f64 = false;            ///< f32 is computed in f64
  bool rounds_operands = true;    ///< of a reduction: to the common type, not the compute type at once
  bool in_order = false;          ///< has kernels for lines along columns only
  bool of_nothing = true;         ///< has results for a line without elements
  /// Of a reduction: the operator that is applied to parts of a long line, and the one that is applied to its
  /// results, which gives the same bits. Parts are of tile::kReduceBlock elements.
  std::string_view of_parts = "", of_results = "";
  std::vector<std::string_view> aten = {};  ///< PyTorch's operators of those names, overloads that fit

  bool reduces() const { return !of_parts.empty(); }
  Holds gives(size_t result) const { return given.empty() ? Holds::kCommon : given[result]; }
  Holds takes(size_t operand) const { return taken.empty() ? Holds::kCommon : taken[operand]; }
};

std::span<const LineOp> line_ops();
const LineOp& line_op(std::string_view name);
/// What it is computed in: as elementwise operators are, but for `in_f64`.
DType compute_type(const LineOp& op, DType common);

/// One call: the dimensions that lines lie side by side in, the innermost first, none of them 0; the length
/// of a line; the results, then the operands. The last stride of each is the one along its line.
struct LineCall {
  const LineOp& op;
  DType common = DType::kF32;  ///< which operands are converted to
  std::span<const int64_t> sizes;
  int64_t length = 0;
  std::span<const Operand> operands;
  std::span<const tile::Literal> numbers = {};  ///< of the compute type
  /// How many elements the formula takes a line to have, where that is not its length: its elements stand for
  /// more, or it is a part of a line.
  std::optional<int64_t> stands_for = {};
  /// Lines that lie after each other in the last dimension are parts of one line. The last may be shorter.
  bool parts = false;
  /// Where there is a number, operands (but those with one element for a line) lie in so many pieces, as long
  /// as each other, and have before their last stride the one from a piece to the next. Results are short.
  std::optional<int64_t> pieces = {};
};

tile::Kernel line_kernel(const LineCall& call);
Launch prepare(const LineCall& call);

/// `op` on the lines along dimension `dim` of tensors, the results first. They have the same sizes, of which
/// none but that along `dim` is 0; one that has one element for a line has stride 0 along it. Without
/// dimensions they are a line of one element.
Launch prepare(const LineOp& op, DType common, std::vector<View> views, size_t dim,
               std::span<const double> numbers = {});
/// The same where lines go along the last two dimensions; results are short.
Launch prepare_in_pieces(const LineOp& op, DType common, std::vector<View> views);

}  // namespace anynpu::ops
