#pragma once

#include <vector>

#include "ops/cube/patches.h"
#include "ops/formula.h"

namespace anynpu::ops {

/// Convolutions whose groups have one channel: out[g, n, o, j] = finish(sum over taps t of weight[g, o, 0, t]
/// * image[g, n, 0, under t at j]), in the order of PatchProduct, computed for neighbouring positions at
/// once.
struct DepthwiseProduct {
  View image;   ///< groups x batch x 1 x depth x height x width
  View weight;  ///< groups x outputs x 1 x taps along depth, height and width
  View out;     ///< groups x batch x outputs x positions along depth, height and width
  Windows windows;
  const Formula* finish = nullptr;  ///< as GemmCall has it
  std::vector<View> operands = {};  ///< of the sizes of `out`
};

/// Whether there are kernels for it: of images of one or two dimensions, by windows of not too many taps, for
/// which, and for their strides and steps, kernels are made.
bool has_depthwise_kernel(const DepthwiseProduct& call);
void prepare(const DepthwiseProduct& call, std::vector<Launch>& launches);

}  // namespace anynpu::ops
