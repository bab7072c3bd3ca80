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

void prepare(const DepthwiseProduct& call, std::vector<Launch>& launches);

/// out[g, o, 0, t] = sum over images n and positions j of gradient[g, n, o, j] * image[g, n, 0, under t at
/// j]: of each column of positions in the order of images and rows, product by product; then of the columns,
/// as a row_sum of tile IR.
struct DepthwiseCorrelation {
  View image;     ///< groups x batch x 1 x depth x height x width
  View gradient;  ///< groups x batch x outputs x positions along depth, height and width
  View out;       ///< groups x outputs x 1 x taps along depth, height and width
  Windows windows;
};
void prepare(const DepthwiseCorrelation& call, const TakeMemory& take, std::vector<Launch>& launches);

/// Whether there are kernels for such a call: of groups of one channel, by windows of not too many taps, for
/// which, and for their strides and steps, kernels are made. Images have one or two dimensions; of products
/// those whose channels come last may have three.
bool has_depthwise_kernel(const DepthwiseProduct& call);
bool has_depthwise_kernel(const DepthwiseCorrelation& call);

}  // namespace anynpu::ops
