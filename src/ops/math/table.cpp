#include <algorithm>

#include "ops/elementwise.h"
#include "ops/math/activations.h"

namespace anynpu::ops {
namespace {

#define ANYNPU_FORMULA(function) [](auto... v) { return function(v...); }

/// The rows: an operator's formula, and what else there is to say of it.
const std::vector<Elementwise> kOps = {
    {.name = "Copy",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return x; })},
     .dtypes = tile::kAll,
     .aclnn = "Copy"},
    {.name = "Add",
     .formulas = {formula<3, Over::kBoth>(
         [](auto a, auto b, auto alpha) { return multiply_add(alpha, b, a); })},
     .dtypes = tile::kAll,
     .operands = 2,
     .numbers = {{"alpha", 1}},
     .casts = true,
     .aten = "add",
     .aclnn = "Add"},
    {.name = "Sub",
     .formulas = {formula<3, Over::kBoth>(
         [](auto a, auto b, auto alpha) { return multiply_add(-alpha, b, a); })},
     .dtypes = kAllNumbers,
     .operands = 2,
     .numbers = {{"alpha", 1}},
     .casts = true,
     .aten = "sub",
     .aclnn = "Sub"},
    {.name = "Mul",
     .formulas = {formula<2, Over::kBoth>([](auto a, auto b) { return a * b; })},
     .dtypes = tile::kAll,
     .operands = 2,
     .casts = true,
     .aten = "mul",
     .aclnn = "Mul"},
    {.name = "Where",
     .formulas = {formula<3, Over::kBoth>([](auto mask, auto a, auto b) { return select(mask, a, b); })},
     .dtypes = tile::kAll,
     .operands = 3,
     .masks = 0b001,
     .aten = "where",
     .aclnn = "SWhere"},
    {.name = "DropoutBackward",
     .formulas = {formula<3>(
         [](auto grad, auto mask, auto scale) { return grad * select(mask, scale, like(scale, 0)); })},
     .dtypes = kAllFloats,
     .operands = 2,
     .masks = 0b010,
     .numbers = {{"scale"}},
     .aten = "native_dropout_backward"},
    {.name = "Gelu",
     .formulas = {formula<1>(ANYNPU_FORMULA(gelu)), formula<1>(ANYNPU_FORMULA(gelu_tanh), 512)},
     .dtypes = kAllFloats,
     .choice = Choice{"approximate", {"none", "tanh"}},
     .domain = {-8, 8},
     .aten = "gelu",
     .aclnn = "Gelu"},
    {.name = "GeluBackward",
     .formulas = {formula<2>(ANYNPU_FORMULA(gelu_backward), 16),
                  formula<2>(ANYNPU_FORMULA(gelu_tanh_backward), 64)},
     .dtypes = kAllFloats,
     .operands = 2,
     .choice = Choice{"approximate", {"none", "tanh"}},
     .cancels = true,
     .domain = {-8, 8},
     .aten = "gelu_backward",
     .aclnn = "GeluBackward"},
    {.name = "Silu",
     .formulas = {formula<1>(ANYNPU_FORMULA(silu))},
     .dtypes = kAllFloats,
     .domain = {-80, 80},
     .aten = "silu",
     .aclnn = "Silu"},
    {.name = "SiluBackward",
     .formulas = {formula<2>(ANYNPU_FORMULA(silu_backward), 16)},
     .dtypes = kAllFloats,
     .operands = 2,
     .cancels = true,
     .domain = {-80, 80},
     .aten = "silu_backward",
     .aclnn = "SiluBackward"},
};

#undef ANYNPU_FORMULA

}  // namespace

std::span<const Elementwise> elementwise_ops() { return kOps; }

const Elementwise* find_elementwise(std::string_view name) {
  const auto found = std::find_if(kOps.begin(), kOps.end(), [&](const auto& op) { return op.name == name; });
  return found == kOps.end() ? nullptr : &*found;
}

}  // namespace anynpu::ops
