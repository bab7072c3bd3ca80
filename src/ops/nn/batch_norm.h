#pragma once

#include <optional>
#include <vector>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// Batch normalization: of each channel, over all images and positions. Images are images x channels x
/// positions, of any number of dimensions of positions; they have elements. Channels are one dimension or
/// more, of which what is of channels has as many. All are floats.
///
/// A channel is summed in parts, of as many whole images each as divide their number and have 512 elements at
/// most (one image at least; all of them where an image is one element): the elements of a part in the order
/// of their indices, then the parts, both as tile/reduce.h says. So no bits depend on layouts or threads.
struct BatchNorm {
  View x, y;
  std::optional<View> weight, bias;  ///< absent: 1 and 0
  View mean, factor;                 ///< of x where it is for training, else given; see below

  struct Training {
    std::optional<View> running_mean, running_variance;  ///< moved by `momentum` to those of x
    double momentum, eps;
  };
  std::optional<Training> training;
};

/// The gradients of that which are wanted.
struct BatchNormBackward {
  View grad, x, mean, factor;
  std::optional<View> weight;                    ///< absent: 1
  bool training;                                 ///< mean and factor are those of x
  std::optional<View> of_x, of_weight, of_bias;  ///< results
};

/// 1 / sqrt(variance + eps), of channels: what `launches` then compute.
View batch_norm_factor(const View& variance, double eps, const TakeMemory& take,
                       std::vector<Launch>& launches);

/// What computes it, in order.
std::vector<Launch> prepare(const BatchNorm& call, const TakeMemory& take);
std::vector<Launch> prepare(const BatchNormBackward& call, const TakeMemory& take);

}  // namespace anynpu::ops
