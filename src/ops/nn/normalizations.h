#pragma once

#include <tuple>

#include "ops/line.h"

namespace anynpu::ops {

// Formulas of lines: `along` is LinesAlong or TilesAlong, V the line or tile.

/// e^(x - max) / sum of it.
template <class A, class V>
V softmax(const A& along, const V& x) {
  const V e = exp(x - along.max(x));
  return e * (1.0 / along.sum(e));
}

/// y (grad - sum(grad y)), of the result y.
template <class A, class V>
V softmax_backward(const A& along, const V& grad, const V& y) {
  return y * (grad - along.sum(grad * y));
}

/// x - max - log of the sum of e^(x - max).
template <class A, class V>
V log_softmax(const A& along, const V& x) {
  const V shifted = x - along.max(x);
  return shifted - log(along.sum(exp(shifted)));
}

/// grad - e^y sum(grad), of the result y.
template <class A, class V>
V log_softmax_backward(const A& along, const V& grad, const V& y) {
  return grad - exp(y) * along.sum(grad);
}

/// (x - mean) / sqrt(variance + eps) weight + bias; the mean; 1 / sqrt(variance + eps). Ba, Kiros and Hinton
/// 2016, arXiv:1607.06450.
template <class A, class V>
std::tuple<V, V, V> layer_norm(const A& along, const V& x, const V& weight, const V& bias, const V& eps) {
  const auto [mean, squares] = along.moments(x);
  const V factor = 1.0 / sqrt(squares / along.length() + eps);
  return {(x - mean) * factor * weight + bias, mean, factor};
}

/// The gradient of x.
template <class A, class V>
V layer_norm_backward(const A& along, const V& grad, const V& x, const V& weight, const V& mean,
                      const V& factor) {
  const V y = (x - mean) * factor, of_y = grad * weight;
  return factor * (of_y - along.sum(of_y) / along.length() - y * (along.sum(of_y * y) / along.length()));
}

/// The gradients of weight and bias, where a line is what one of their elements serves.
template <class A, class V>
std::tuple<V, V> layer_norm_backward_affine(const A& along, const V& grad, const V& x, const V& mean,
                                            const V& factor) {
  return {along.sum(grad * ((x - mean) * factor)), along.sum(grad)};
}

// Batch normalization. Ioffe and Szegedy 2015, arXiv:1502.03167. Lines are parts of a channel, or its parts,
// which are equal, as a line.

/// Of a part.
template <class A, class V>
std::tuple<V, V> batch_norm_moments(const A& along, const V& x) {
  const auto [mean, squares] = along.moments(x);
  return {mean, squares};
}

/// Of the moments of parts of `size` elements: mean and factor, 1 / sqrt(variance + eps), twice, and the
/// running mean and variance, of which `rest` stays. The running variance is the unbiased one.
template <class A, class V>
std::tuple<V, V, V, V, V, V> batch_norm_statistics(const A& along, const V& means, const V& squares,
                                                   const V& running_mean, const V& running_variance,
                                                   const V& size, const V& momentum, const V& rest,
                                                   const V& eps) {
  const auto [mean, apart] = along.moments(means);
  const V all = along.sum(squares) + size * apart, count = size * along.length();
  const V factor = 1.0 / sqrt(all / count + eps);
  return {mean,
          factor,
          mean,
          factor,
          momentum * mean + rest * running_mean,
          momentum * (all / (count - 1.0)) + rest * running_variance};
}

/// 1 / sqrt(variance + eps) of each.
template <class A, class V>
V batch_norm_factor(const A&, const V& variance, const V& eps) {
  return 1.0 / sqrt(variance + eps);
}

/// Of a part: the sums of grad (x - mean), and of grad.
template <class A, class V>
std::tuple<V, V> batch_norm_gradients(const A& along, const V& grad, const V& x, const V& mean) {
  return {along.sum(grad * (x - mean)), along.sum(grad)};
}

/// Of the sums of parts of `size` elements: what batch_norm_backward() takes off, and the gradients of weight
/// and bias.
template <class A, class V>
std::tuple<V, V, V, V> batch_norm_backward_affine(const A& along, const V& products, const V& sums,
                                                  const V& factor, const V& size) {
  const V product = along.sum(products), sum = along.sum(sums), count = size * along.length();
  return {sum / count, factor * factor * (product / count), product * factor, sum};
}

}  // namespace anynpu::ops
