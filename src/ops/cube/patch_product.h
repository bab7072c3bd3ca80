#pragma once

#include <vector>

#include "ops/cube/patches.h"
#include "ops/formula.h"

namespace anynpu::ops {

/// Products of matrices of which one is an image's patches. Sums are as those of GemmCall: over blocks of
/// kDepth products in the order of the patches' rows, or columns, whatever else is computed.

/// out[g, n, o, j] = finish(sum over taps t and channels c of weight[g, o, c, t] * image[g, n, c, under t at
/// j])
struct PatchProduct {
  Patches patches;
  View weight;                      ///< groups x outputs x channels x taps along depth, height and width
  View out;                         ///< groups x batch x outputs x positions along depth, height and width
  const Formula* finish = nullptr;  ///< as GemmCall has it
  std::vector<View> operands = {};  ///< of the sizes of `out`
};
void prepare(const PatchProduct& call, const TakeMemory& take, std::vector<Launch>& launches);

/// out[g, o, c, t] = sum over images n and positions j of gradient[g, n, o, j] * image[g, n, c, under t at j]
struct PatchCorrelation {
  Patches patches;
  View gradient;  ///< groups x batch x outputs x positions along depth, height and width
  View out;       ///< groups x outputs x channels x taps along depth, height and width
};
void prepare(const PatchCorrelation& call, const TakeMemory& take, std::vector<Launch>& launches);

}  // namespace anynpu::ops
