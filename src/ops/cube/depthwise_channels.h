#pragma once

#include <vector>

#include "ops/cube/depthwise.h"

namespace anynpu::ops {

/// Whether neighbouring channels of an image are side by side, and its neighbouring elements are not; of a
/// product whose image lies in neither way, those of the result. Windows do not reach so far that blocks need
/// much memory.
bool goes_by_channels(const DepthwiseProduct& call);
bool goes_by_channels(const DepthwiseCorrelation& call);

/// The sums of depthwise.h, with the same bits, computed for neighbouring channels at once. `out` has
/// elements, and so has the gradient.
Launch launch_channels(const DepthwiseProduct& call);
std::vector<Launch> launch_channels(const DepthwiseCorrelation& call, const TakeMemory& take);

}  // namespace anynpu::ops
