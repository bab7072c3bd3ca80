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

}  // namespace anynpu::ops
