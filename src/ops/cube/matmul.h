#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "ops/cube/gemm.h"

namespace anynpu::ops {

/// A number, or the only element of a tensor, which is read when the product is computed.
using Factor = std::variant<double, View>;

/// out = alpha * (left @ right) + beta * added, where left @ right is what torch.matmul has: a left operand
/// of one dimension is a row and a right one a column, which the result does not have; dimensions before the
/// last two are batches, and broadcast. Sums are those of GemmCall, and rounded once, when all is added.
struct Matmul {
  View left, right, out;  ///< left and right of a type
  /// Broadcast to the sizes of `out`, which it may be. With beta 0 it does not count, be it NaN.
  std::optional<View> added = {};
  Factor beta = 1.0, alpha = 1.0;
  /// Right, a matrix, as pack_right() made it of 1 x k x n.
  std::optional<View> packed = {};
};

/// The sizes of left @ right; nothing where they do not fit.
std::optional<std::vector<int64_t>> matmul_sizes(std::span<const int64_t> left,
                                                 std::span<const int64_t> right);

/// The launches of a call, in order. Raises kInvalidArgument where sizes or types do not fit.
std::vector<Launch> prepare(const Matmul& call, const TakeMemory& take);

/// The same of left, batch x m x k, and right, batch x k x n, whose products are added up: out is m x n, and
/// the factors are numbers.
std::vector<Launch> prepare_sum_of_batches(const Matmul& call, const TakeMemory& take);

}  // namespace anynpu::ops
