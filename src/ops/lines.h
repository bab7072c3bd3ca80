#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ops/launch.h"
#include "ops/line.h"
#include "ops/operand.h"

namespace anynpu::ops {

/// A function of lines: of the elements along one dimension, each line for itself. Written once as a generic
/// lambda over what Along gives: over tile values it emits code, over Line it is the reference. An operand or
/// a result that has one element for a line is a line of length 1.
struct LineFormula {
  size_t arguments, results;
  double ulps;  ///< how far from the exact value, in units of the last place of the largest of the line
  std::function<std::vector<tile::Expr>(const TilesAlong&, std::span<const tile::Expr>)> emit;
  std::function<std::vector<Line>(LinesAlong, std::span<const Line>)> reference;
};

/// An operator of lines. f16 and bf16 are computed in f32, and rounded once.
struct LineOp {
  std::string_view name;
  LineFormula formula;  ///< of the operands, then the numbers
  int operands = 1;
  int numbers = 0;
  uint8_t one_for_line = 0;   ///< bit i: operand i has one element for a line
  uint8_t short_results = 0;  ///< bit i: result i has one element for a line
};

std::span<const LineOp> line_ops();
const LineOp& line_op(std::string_view name);

/// One call: the dimensions that lines lie side by side in, the innermost first, none of them 0; the length
/// of a line; the results, then the operands. The last stride of each is the one along its line.
struct LineCall {
  const LineOp& op;
  DType compute = DType::kF32;  ///< which operands are converted to
  std::span<const int64_t> sizes;
  int64_t length = 0;
  std::span<const Operand> operands;
  std::span<const tile::Literal> numbers;  ///< of the compute type
};

tile::Kernel line_kernel(const LineCall& call);
Launch prepare(const LineCall& call);

}  // namespace anynpu::ops
