#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
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

/// How many positions a window has over `size` elements and its padding: those where it is wholly there, and
/// where that rounds up, one more if it starts before the end. Less than 1 where it is larger.
int64_t pool_positions(int64_t size, const PoolAxis& axis, bool rounds_up);

/// Windows as calls say them.
struct PoolWindows {
  /// Sizes, strides, paddings and dilations: of each dimension, or one for all. Without strides, these are
  /// the windows' sizes.
  std::array<std::vector<int64_t>, 4> numbers = {{{}, {}, {}, {1}}};
  bool rounds_up = false;
};
/// They over the last dimensions of an image, which have `sizes`. Of what is not accepted `refuse` is told
/// which of the numbers it is, after the last one the image, and what is accepted; where it returns, that is
/// nothing.
using RefusePool = std::function<void(size_t number, const std::string& accepted)>;
std::optional<Pool> windowed_pool(std::span<const int64_t> sizes, const PoolWindows& windows,
                                  const RefusePool& refuse);
/// Adaptive windows along the last dimensions of an image, which have `sizes`, to as many positions, 1 at
/// least. Where sizes are multiples of them these are ordinary ones.
Pool adaptive_pool(std::span<const int64_t> sizes, std::span<const int64_t> positions);
/// A tensor, with its batch or without one, whose last `dims` dimensions are pooled, as calls take it.
View pool_images(View tensor, size_t dims);

/// y: the greatest element of each window, the last NaN where there is one. `indices`, i32 or i64: its place
/// among the elements of its image and channel, the first of equal ones. These are less than 2^31.
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
