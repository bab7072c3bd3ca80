#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ops/launch.h"
#include "ops/operand.h"
#include "tile/builder.h"

namespace anynpu::ops {

/// An operator of elements in the order of memory, each of which gets a random number u, uniform in [0, 1).
/// Philox gives its bits: with c = n / 4 counters for n elements, element k c + i takes word k of counter i,
/// and the last n % 4 take the words of counter c. Of f64 it is two words and n / 2.
struct RandomOp {
  std::string_view name, doc;  ///< `doc`: what it computes of u
  int results = 1, operands = 0, numbers = 0;
  /// u has as many digits as the first result's type; else as the type that is computed with.
  bool digits_of_result = false;
  /// Of u, the operands and the numbers, in the type that is computed with: the results.
  std::function<std::vector<tile::Expr>(const tile::Expr& u, std::span<const tile::Expr>)> emit;
};

std::span<const RandomOp> random_ops();
const RandomOp& random_op(std::string_view name);

/// One call: the tensors, results first, as so many adjacent elements, 1 at least.
struct RandomCall {
  const RandomOp& op;
  DType compute = DType::kF32;
  int64_t elements = 0;
  std::span<const Operand> tensors;        ///< strides do not count
  std::span<const tile::Literal> numbers;  ///< of the compute type
  uint64_t seed = 0, offset = 0;           ///< key and offset of Philox
};

Launch prepare(const RandomCall& call);

/// The same u, of the type that is computed with, for kernels of other operators: of each element that a tile
/// of i64 names, among `count`, from Philox's seed and offset, scalars of i64.
tile::Expr uniform_at(tile::Builder& builder, const tile::Expr& elements, const tile::Index& count,
                      const tile::Expr& seed, const tile::Expr& offset, DType compute);

}  // namespace anynpu::ops
