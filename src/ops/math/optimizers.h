#pragma once

#include <tuple>

#include "ops/formula.h"

namespace anynpu::ops {

using std::expm1, std::sqrt;

/// What a step of Adam takes beside tensors: the differences 1 - beta and the logarithms apart, because they
/// would cancel after rounding; `sign` is -1 to maximize.
template <class V>
struct AdamNumbers {
  V rate, rest1, beta2, rest2, log_beta1, log_beta2, decay, epsilon, sign;
};

/// Where the decay of weights goes: into the gradient, or apart from it (AdamW; Loshchilov and Hutter 2017,
/// arXiv:1711.05101).
enum class Decay : uint8_t { kInGradient, kApart };

template <Decay decay, class V>
V adam_gradient(V param, V grad, const AdamNumbers<V>& n) {
  if constexpr (decay == Decay::kInGradient) return n.sign * grad + n.decay * param;
  return n.sign * grad;
}

/// The parameter after the step; `first` and `second` are the averages, which 1 - beta^step divides because
/// they start from 0.
template <Decay decay, class V>
V adam_parameter(V param, V first, V second, V step, const AdamNumbers<V>& n) {
  const V missing1 = -expm1(step * n.log_beta1), missing2 = -expm1(step * n.log_beta2);
  const V move = n.rate / missing1 * first / (sqrt(second) / sqrt(missing2) + n.epsilon);
  if constexpr (decay == Decay::kInGradient) return param - move;
  return param - n.rate * n.decay * param - move;
}

/// One step of Adam: the parameter and the averages of gradient and squared gradient after it. Kingma and Ba
/// 2014, arXiv:1412.6980.
template <Decay decay, class V>
std::tuple<V, V, V> adam(V param, V grad, V first, V second, V step, const AdamNumbers<V>& n) {
  const V g = adam_gradient<decay>(param, grad, n);
  const V m = first + n.rest1 * (g - first), v = n.beta2 * second + n.rest2 * (g * g);
  return {adam_parameter<decay>(param, m, v, step, n), m, v};
}

/// The same with the largest second average so far in its place, which is the last result. Reddi, Kale and
/// Kumar 2018.
template <Decay decay, class V>
std::tuple<V, V, V, V> amsgrad(V param, V grad, V first, V second, V largest, V step,
                               const AdamNumbers<V>& n) {
  const auto [_, m, v] = adam<decay>(param, grad, first, second, step, n);
  const V most = max(largest, v);
  return {adam_parameter<decay>(param, m, most, step, n), m, v, most};
}

}  // namespace anynpu::ops
