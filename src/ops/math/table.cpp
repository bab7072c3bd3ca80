#include <algorithm>

#include "ops/elementwise.h"
#include "ops/math/activations.h"
#include "ops/math/arithmetic.h"
#include "ops/math/optimizers.h"
#include "ops/rows.h"

namespace anynpu::ops {
namespace {

#define ANYNPU_FORMULA(function) [](auto... v) { return function(v...); }

template <class F>
Elementwise comparison(std::string_view name, std::string_view aten, F compare) {
  return {.name = name,
          .formulas = {formula<2, Over::kBoth>(compare, 0)},
          .dtypes = tile::kAll,
          .operands = 2,
          .compares = true,
          .aten = aten,
          .aclnn = name};
}

/// A step of an optimizer: the last arguments are AdamNumbers.
template <size_t kTensors, size_t kResults, class F>
Formula adam_formula(F step) {
  constexpr size_t kNumbers = sizeof(AdamNumbers<double>) / sizeof(double);
  return formula<kTensors + kNumbers, Over::kFloats, kResults>(
      [step](auto... v) {
        const std::tuple arguments(v...);
        return [&]<size_t... tensor, size_t... number>(std::index_sequence<tensor...>,
                                                       std::index_sequence<number...>) {
          const AdamNumbers numbers{std::get<kTensors + number>(arguments)...};
          return step(std::get<tensor>(arguments)..., numbers);
        }(std::make_index_sequence<kTensors>(), std::make_index_sequence<kNumbers>());
      },
      64);
}

/// Those of PyTorch's documentation where a call does not say.
const std::vector<Number> kAdamNumbers = {{"lr", 1e-3},
                                          {"1 - beta1", 1 - 0.9},
                                          {"beta2", 0.999},
                                          {"1 - beta2", 1 - 0.999},
                                          {"log(beta1)", std::log(0.9)},
                                          {"log(beta2)", std::log(0.999)},
                                          {"weight_decay", 1e-2},
                                          {"eps", 1e-8},
                                          {"sign", 1}};
const Choice kDecays = {"decay", {"in the gradient", "apart"}};

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
     .accepts = kAllNumbers,
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
    {.name = "Div",
     .formulas = {formula<2>([](auto a, auto b) { return a / b; })},
     .dtypes = kAllFloats,
     .operands = 2,
     .casts = true,
     .aten = "div",
     .aclnn = "Div"},
    {.name = "Addcmul",
     .formulas = {formula<4, Over::kBoth>(
         [](auto x, auto a, auto b, auto value) { return x + value * a * b; })},
     .dtypes = kAllNumbers,
     .operands = 3,
     .numbers = {{"value", 1}},
     .cancels = true,
     .aten = "addcmul",
     .aclnn = "Addcmul"},
    {.name = "Addcdiv",
     .formulas = {formula<4>([](auto x, auto a, auto b, auto value) { return x + value * a / b; })},
     .dtypes = kAllFloats,
     .operands = 3,
     .numbers = {{"value", 1}},
     .accepts = kAllFloats,
     .cancels = true,
     .aten = "addcdiv",
     .aclnn = "Addcdiv"},
    {.name = "Lerp",
     .formulas = {formula<3>(ANYNPU_FORMULA(lerp))},
     .dtypes = kAllFloats,
     .operands = 2,
     .numbers = {{"weight"}},
     .promotes = false,
     .cancels = true,
     .aten = "lerp",
     .aclnn = "Lerp"},
    {.name = "Neg",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return -x; })},
     .dtypes = kAllNumbers,
     .aten = "neg",
     .aclnn = "Neg"},
    {.name = "Reciprocal",
     .formulas = {formula<1>([](auto x) { return 1.0 / x; })},
     .dtypes = kAllFloats,
     .casts = true,
     .aten = "reciprocal",
     .aclnn = "Reciprocal"},
    {.name = "Sqrt",
     .formulas = {formula<1>([](auto x) { return sqrt(x); }, 0)},
     .dtypes = kAllFloats,
     .casts = true,
     .aten = "sqrt",
     .aclnn = "Sqrt"},
    {.name = "Exp",
     .formulas = {formula<1>([](auto x) { return exp(x); })},
     .dtypes = kAllFloats,
     .casts = true,
     .aten = "exp",
     .aclnn = "Exp"},
    {.name = "Log",
     .formulas = {formula<1>([](auto x) { return log(x); })},
     .dtypes = kAllFloats,
     .casts = true,
     .aten = "log",
     .aclnn = "Log"},
    {.name = "Tanh",
     .formulas = {formula<1>([](auto x) { return tanh(x); })},
     .dtypes = kAllFloats,
     .casts = true,
     .domain = {-10, 10},
     .aten = "tanh",
     .aclnn = "Tanh"},
    {.name = "Sigmoid",
     .formulas = {formula<1>(ANYNPU_FORMULA(sigmoid))},
     .dtypes = kAllFloats,
     .casts = true,
     .domain = {-80, 80},
     .aten = "sigmoid",
     .aclnn = "Sigmoid"},
    {.name = "Maximum",
     .formulas = {formula<2, Over::kBoth>([](auto a, auto b) { return max(a, b); }, 0)},
     .dtypes = tile::kAll,
     .operands = 2,
     .casts = true,
     .aten = "maximum",
     .aclnn = "Maximum"},
    {.name = "Minimum",
     .formulas = {formula<2, Over::kBoth>([](auto a, auto b) { return min(a, b); }, 0)},
     .dtypes = tile::kAll,
     .operands = 2,
     .casts = true,
     .aten = "minimum",
     .aclnn = "Minimum"},
    comparison("Eq", "eq", [](auto a, auto b) { return a == b; }),
    comparison("Ne", "ne", [](auto a, auto b) { return a != b; }),
    comparison("Lt", "lt", [](auto a, auto b) { return a < b; }),
    comparison("Le", "le", [](auto a, auto b) { return a <= b; }),
    comparison("Gt", "gt", [](auto a, auto b) { return a > b; }),
    comparison("Ge", "ge", [](auto a, auto b) { return a >= b; }),
    {.name = "Where",
     .formulas = {formula<3, Over::kBoth>([](auto mask, auto a, auto b) { return select(mask, a, b); })},
     .dtypes = tile::kAll,
     .operands = 3,
     .masks = 0b001,
     .aten = "where",
     .aclnn = "SWhere"},
    {.name = "MaskedFill",
     .formulas = {formula<3, Over::kBoth>(
         [](auto a, auto mask, auto value) { return select(mask, value, a); })},
     .dtypes = tile::kAll,
     .operands = 3,
     .masks = 0b010,
     .follows = 0b100,
     .aten = "masked_fill",
     .aclnn = "MaskedFill"},
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
    {.name = "Adam",
     .formulas = {adam_formula<5, 3>([](const auto&... v) { return adam<Decay::kInGradient>(v...); }),
                  adam_formula<5, 3>([](const auto&... v) { return adam<Decay::kApart>(v...); })},
     .dtypes = kAllFloats,
     .operands = 5,
     .follows = 0b10000,
     .numbers = kAdamNumbers,
     .choice = kDecays,
     .cancels = true,
     .domain = {0, 100}},
    {.name = "Amsgrad",
     .formulas = {adam_formula<6, 4>([](const auto&... v) { return amsgrad<Decay::kInGradient>(v...); }),
                  adam_formula<6, 4>([](const auto&... v) { return amsgrad<Decay::kApart>(v...); })},
     .dtypes = kAllFloats,
     .operands = 6,
     .follows = 0b100000,
     .numbers = kAdamNumbers,
     .choice = kDecays,
     .cancels = true,
     .domain = {0, 100}},
};

#undef ANYNPU_FORMULA

}  // namespace

std::span<const Elementwise> elementwise_ops() { return kOps; }

const Elementwise& elementwise_op(std::string_view name) { return row_named(elementwise_ops(), name); }

}  // namespace anynpu::ops
