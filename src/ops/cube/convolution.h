#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// A convolution of images of one to three dimensions: batch x channels x sizes, by weights of outputs x
/// channels of a group x taps; transposed, of channels x outputs of a group x taps, and what goes from images
/// to results is what else goes from results' gradients to images'. Tensors have any strides, and one type of
/// f16, bf16, f32 and f64.
///
/// Images, results and their gradients may all be in blocks instead, batch x blocks x sizes x channels of a
/// block, which are side by side, as NC1HWC0 has them, where takes_blocks() says so.
///
/// Sums are of products in f32, f64 for f64, in the order (tap, channel), with padding as zeros; the weight's
/// gradient in the order (image, position). They are over blocks of kDepth products, as GemmCall has it, and
/// so do not depend on what else is computed.
struct Convolution {
  std::vector<int64_t> stride, padding, dilation;  ///< of each dimension; 1, 0 and 1 at least
  bool transposed = false;
  int64_t groups = 1;

  /// Whether images may be in blocks of `block` channels, by a weight whose first sizes are those: in one
  /// group; in groups that have blocks of their own; and, of as many results as channels, in groups of which
  /// each block has whole ones, as of one channel.
  bool takes_blocks(int64_t outputs, int64_t channels, int64_t block) const;

  /// The launches of a call, in order; `take` gives memory for what they pass on. They raise kInvalidArgument
  /// where sizes or types do not fit.
  std::vector<Launch> forward(const View& image, const View& weight, const std::optional<View>& bias,
                              const View& out, const TakeMemory& take) const;
  std::vector<Launch> image_gradient(const View& gradient, const View& weight, const View& out,
                                     const TakeMemory& take) const;
  std::vector<Launch> weight_gradient(const View& gradient, const View& image, const View& out,
                                      const TakeMemory& take) const;
};

}  // namespace anynpu::ops
