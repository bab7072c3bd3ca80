#pragma once

#include <optional>
#include <vector>

#include "ops/cube/patches.h"

namespace anynpu::ops {

/// Weights times the patches of images whose channels are in blocks, as NC1HWC0 has them: those of a block
/// are side by side. The sums are PatchProduct's, to the bit. Channels beyond the last one are not read, and
/// those of results not written.
struct BlockProduct {
  View image;       ///< batch x blocks x depth x height x width x channels of a block
  Windows windows;  ///< over depth, height and width
  View weight;      ///< outputs x channels x taps along depth, height and width
  View out;         ///< batch x blocks x positions along depth, height and width x outputs of a block
  std::optional<View> bias = {};  ///< one for each output
};
void prepare(const BlockProduct& call, const TakeMemory& take, std::vector<Launch>& launches);

/// The patches of such images times the gradients of results, which lie like them. The sums are
/// PatchCorrelation's.
struct BlockCorrelation {
  View image;
  Windows windows;
  View gradient;  ///< as `out` above
  View out;       ///< outputs x channels x taps along depth, height and width
};
void prepare(const BlockCorrelation& call, std::vector<Launch>& launches);

}  // namespace anynpu::ops
