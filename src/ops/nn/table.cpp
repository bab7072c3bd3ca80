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
  };
}

#undef ANYNPU_FORMULA

}  // namespace anynpu::ops
