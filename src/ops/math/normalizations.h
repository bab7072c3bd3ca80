#pragma once

namespace anynpu::ops {

// The last steps of batch normalization, of an element and its channel's numbers; the others are operators of
// lines.

/// The result, of a factor 1 / sqrt(variance + eps).
template <class V>
V batch_norm(V x, V mean, V factor, V weight, V bias) {
  return (x - mean) * (factor * weight) + bias;
}

/// The gradient of x where statistics are those of x: they give what is taken off, a shift and a slope.
template <class V>
V batch_norm_backward(V grad, V x, V mean, V shift, V slope, V factor, V weight) {
  return (grad - shift - (x - mean) * slope) * (factor * weight);
}

/// The gradient of x where statistics are given.
template <class V>
V batch_norm_inference_backward(V grad, V factor, V weight) {
  return grad * (factor * weight);
}

}  // namespace anynpu::ops
