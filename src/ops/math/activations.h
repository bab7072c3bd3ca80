#pragma once

#include "ops/formula.h"

namespace anynpu::ops {

// Formulas use their value type's functions: <cmath>'s for numbers, tile/builder.h's for tile values.
using std::erfc, std::exp;

inline constexpr double kInvSqrt2 = 0.70710678118654752440;     // 1 / sqrt(2)
inline constexpr double kInvSqrt2Pi = 0.39894228040143267794;   // 1 / sqrt(2 pi)
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;  // sqrt(2 / pi)
inline constexpr double kGeluCubic = 0.044715;

/// Logistic function 1 / (1 + e^-x).
template <class V>
V sigmoid(V x) {
  return 1.0 / (1.0 + exp(-x));
}

/// Phi(x), the normal distribution's function: erfc(-x / sqrt(2)) / 2, which keeps the tail, where 1 + erf
/// cancels. There a rounded argument u + d would count: erfc(u + d) is erfc(u) (1 - 2 u d) for large u.
template <class V>
V normal_distribution(V x) {
  const auto [u, d] = product(-x, kInvSqrt2);
  return 0.5 * erfc(u) * select(x < 0.0, 1.0 - 2.0 * u * d, like(x, 1.0));
}

/// Gaussian error linear unit x Phi(x). Hendrycks and Gimpel 2016, arXiv:1606.08415.
template <class V>
V gelu(V x) {
  return x * normal_distribution(x);
}

/// grad (Phi(x) + x phi(x)), where phi is the normal distribution's density.
template <class V>
V gelu_backward(V grad, V x) {
  return grad * (normal_distribution(x) + x * (kInvSqrt2Pi * exp(-0.5 * x * x)));
}

/// The argument of the logistic function in the same paper's approximation of Gelu: 0.5 (1 + tanh u) is
/// sigmoid(2 u), which keeps the tail.
template <class V>
V gelu_tanh_argument(V x) {
  return 2.0 * kSqrt2OverPi * (x + kGeluCubic * x * x * x);
}

template <class V>
V gelu_tanh(V x) {
  return x / (1.0 + exp(-gelu_tanh_argument(x)));
}

template <class V>
V gelu_tanh_backward(V grad, V x) {
  const V s = sigmoid(gelu_tanh_argument(x));
  const V slope = 2.0 * kSqrt2OverPi * (1.0 + 3.0 * kGeluCubic * x * x);
  return grad * (s + x * s * (1.0 - s) * slope);
}

/// Sigmoid linear unit x sigmoid(x). Elfwing, Uchibe and Doya 2017, arXiv:1702.03118.
template <class V>
V silu(V x) {
  return x / (1.0 + exp(-x));
}

template <class V>
V silu_backward(V grad, V x) {
  const V s = sigmoid(x);
  return grad * s * (1.0 + x * (1.0 - s));
}

}  // namespace anynpu::ops
