#include "ops/line_tables.h"
#include "ops/nn/normalizations.h"

namespace anynpu::ops {

#define ANYNPU_FORMULA(function) [](const auto& along, const auto&... v) { return function(along, v...); }

std::vector<LineOp> normalizations() {
  return {
      {.name = "Softmax",
       .doc = "e^x / the sum of e^x",
       .formula = line_formula<1>(ANYNPU_FORMULA(softmax)),
       .aten = {"_softmax"}},
      {.name = "SoftmaxBackward",
       .doc = "the gradient of x",
       .formula = line_formula<2>(ANYNPU_FORMULA(softmax_backward)),
       .operands = 2,
       .aten = {"_softmax_backward_data"}},
      {.name = "LogSoftmax",
       .doc = "x - ln of the sum of e^x",
       .formula = line_formula<1>(ANYNPU_FORMULA(log_softmax)),
       .aten = {"_log_softmax"}},
      {.name = "LogSoftmaxBackward",
       .doc = "the gradient of x",
       .formula = line_formula<2>(ANYNPU_FORMULA(log_softmax_backward)),
       .operands = 2,
       .aten = {"_log_softmax_backward_data"}},
      {.name = "LayerNorm",
       .doc = "(x - mean) / √(variance + eps) weight + bias, mean, 1 / √(variance + eps)",
       .formula = line_formula<4, 3>(ANYNPU_FORMULA(layer_norm)),
       .operands = 3,
       .numbers = 1,
       .short_results = 0b110},
      {.name = "LayerNormBackward",
       .doc = "the gradient of x",
       .formula = line_formula<5>(ANYNPU_FORMULA(layer_norm_backward)),
       .operands = 5,
       .one_for_line = 0b11000},
      {.name = "LayerNormBackwardAffine",
       .doc = "the gradients of weight and bias",
       .formula = line_formula<4, 2>(ANYNPU_FORMULA(layer_norm_backward_affine)),
       .operands = 4,
       .short_results = 0b11},
      {.name = "BatchNormMoments",
       .doc = "of a part of a channel: the mean, and the sum of the squares of the distances from it",
       .formula = line_formula<1, 2>(ANYNPU_FORMULA(batch_norm_moments)),
       .short_results = 0b11},
      {.name = "BatchNormStatistics",
       .doc = "of the moments of parts: mean, 1 / √(variance + eps), running mean and variance",
       .formula = line_formula<8, 6>(ANYNPU_FORMULA(batch_norm_statistics)),
       .operands = 4,
       .numbers = 4,
       .one_for_line = 0b1100,
       .short_results = 0b111111},
      {.name = "BatchNormFactor",
       .doc = "1 / √(variance + eps)",
       .formula = line_formula<2>(ANYNPU_FORMULA(batch_norm_factor)),
       .numbers = 1},
      {.name = "BatchNormGradients",
       .doc = "of a part of a channel: the sums of grad (x - mean), and of grad",
       .formula = line_formula<3, 2>(ANYNPU_FORMULA(batch_norm_gradients)),
       .operands = 3,
       .one_for_line = 0b100,
       .short_results = 0b11},
      {.name = "BatchNormBackwardAffine",
       .doc = "of the sums of parts: what BatchNormBackward takes off, and the gradients of weight and bias",
       .formula = line_formula<4, 4>(ANYNPU_FORMULA(batch_norm_backward_affine)),
       .operands = 3,
       .numbers = 1,
       .one_for_line = 0b100,
       .short_results = 0b1111},
  };
}

#undef ANYNPU_FORMULA

}  // namespace anynpu::ops
