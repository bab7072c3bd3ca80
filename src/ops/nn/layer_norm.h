#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// Layer normalization of the dimensions of x from `split` on. Its parameters have the sizes of those; its
/// statistics have x's sizes, with 1 in their place. All are floats.
struct LayerNorm {
  size_t split;
  View x, y;
  std::optional<View> weight, bias;  ///< absent: 1 and 0
  double eps;
  std::optional<View> mean, factor;  ///< results, where wanted; factor is 1 / sqrt(variance + eps)
};

/// The gradients of that which are wanted.
struct LayerNormBackward {
  size_t split;
  View grad, x, mean, factor;
  std::optional<View> weight;                    ///< absent: 1
  std::optional<View> of_x, of_weight, of_bias;  ///< results
};

/// What computes it, in order; nothing where there is nothing to write.
std::vector<Launch> prepare(const LayerNorm& call, const TakeMemory& take);
std::vector<Launch> prepare(const LayerNormBackward& call, const TakeMemory& take);

}  // namespace anynpu::ops
