#pragma once

#include <cstdint>
#include <span>

#include "ops/nn/pooling.h"

namespace anynpu::ops {

/// What a kernel over windows computes: each one's greatest element and its place, its mean, or the gradients
/// of means, which it adds to the image's.
enum class PoolGives : uint8_t { kGreatest, kMean, kMeanGradient };

/// `image` is what windows are over, `results` are of their positions; of gradients that is the operand.
Launch launch_pool(PoolGives gives, const Pool& pool, const View& image, std::span<const View> results);

}  // namespace anynpu::ops
