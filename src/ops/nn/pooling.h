#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// The windows along a dimension of an image. The one at position i has its taps over the elements
/// i stride - padding + t dilation that are in the image. Adaptive ones divide the image instead: that at
/// position i has the elements from i size / positions, rounded down, to (i + 1) size / positions, rounded
/// up.
struct PoolAxis {
  int64_t positions = 1, taps = 1, stride = 1, padding = 0, dilation = 1;
};

/// Pooling by windows, of floats. Images are batch x channels x depth x height x width, and so are results,
/// of positions; all have elements. The taps of a window are taken in the order of their indices, so that no
/// bits depend on layouts or threads.
struct Pool {
  std::array<PoolAxis, 3> axes;  ///< along depth, height and width
  bool adaptive = false;
  // Of means:
  bool counts_padding = false;         ///< padding counts as elements, which are 0
  std::optional<double> divisor = {};  ///< of sums, in place of how many elements there are
};

/// y: the greatest element of each window, the last NaN where there is one. `indices`, i64: its place among
/// the elements of its image and channel, the first of equal ones. These are less than 2^31.
std::vector<Launch> prepare_max_pool(const Pool& pool, const View& x, const View& y, const View& indices);
/// of_x: the sum of the gradients of the windows whose indices say it, in the order of the windows. Running
/// it fails as prepare(IndexingCall) says.
std::vector<Launch> prepare_max_pool_backward(const View& grad, const View& indices, const View& of_x,
                                              const TakeMemory& take);

/// y: the mean of each window.
std::vector<Launch> prepare_average_pool(const Pool& pool, const View& x, const View& y);
/// of_x: the sum of the gradients of the windows that have the element, each divided as the window's sum is.
std::vector<Launch> prepare_average_pool_backward(const Pool& pool, const View& grad, const View& of_x,
                                                  const TakeMemory& take);

}  // namespace anynpu::ops
