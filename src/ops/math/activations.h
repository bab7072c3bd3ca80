#pragma once

#include "ops/formula.h"

namespace anynpu::ops {

// Formulas use their value type's functions: <cmath>'s for numbers, tile/builder.h's for tile values.
using std::exp, tile::f64::ndtr;

inline constexpr double kInvSqrt2Pi = 0.39894228040143267794;   // 1 / sqrt(2 pi)
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;  // sqrt(2 / pi)
inline constexpr double kGeluCubic = 0.044715;

/// Logistic function 1 / (1 + e^-x).
template <class V>
V sigmoid(V x) {
  return 1.0 / (1.0 + exp(-x));
}

/// Gaussian error linear unit x Phi(x), Phi the normal distribution's function. Hendrycks and Gimpel 2016,
/// arXiv:1606.08415.
template <class V>
V gelu(V x) {
  return x * ndtr(x);
}

/// grad (Phi(x) + x phi(x)), where phi is the normal distribution's density.
template <class V>
V gelu_backward(V grad, V x) {
  return grad * (ndtr(x) + x * (kInvSqrt2Pi * exp(-0.5 * x * x)));
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
