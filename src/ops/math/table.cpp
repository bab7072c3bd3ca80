#include <algorithm>

#include "ops/elementwise.h"
#include "ops/math/activations.h"
#include "ops/math/arithmetic.h"
#include "ops/math/normalizations.h"
#include "ops/math/optimizers.h"
#include "ops/rows.h"

namespace anynpu::ops {
namespace {

#define ANYNPU_FORMULA(function) [](auto... v) { return function(v...); }

template <class F>
Elementwise comparison(std::string_view name, std::string_view doc, std::string_view aten, F compare) {
  return {.name = name,
          .doc = doc,
          .formulas = {formula<2, Over::kBoth>(compare, 0)},
          .dtypes = tile::kAll,
          .operands = 2,
          .compares = true,
          .aten = aten};
}

/// Whether the truths of two elements, or those of their bits, combine to true.
template <class F>
Elementwise logical(std::string_view name, std::string_view doc, std::string_view aten, F combine) {
  return comparison(name, doc, aten, [combine](auto a, auto b) { return combine(a != 0.0, b != 0.0); });
}
template <class F>
Elementwise bitwise(std::string_view name, std::string_view doc, std::string_view aten, F combine) {
  return {.name = name,
          .doc = doc,
          .formulas = {formula<2, Over::kIntegers>(combine, 0)},
          .dtypes = tile::kBits,
          .operands = 2,
          .casts = true,
          .aten = aten};
}

/// Of one operand, which is converted to a float.
template <class F>
Elementwise function(std::string_view name, std::string_view doc, std::string_view aten, F of_float,
                     Elementwise::Domain domain = {-100, 100}, double ulps = 4) {
  return {.name = name,
          .doc = doc,
          .formulas = {formula<1>(of_float, ulps)},
          .dtypes = kAllFloats,
          .gives_floats = true,
          .domain = domain,
          .aten = aten};
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
     .doc = "x, in another type",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return x; }, 0)},
     .dtypes = tile::kAll},
    {.name = "Add",
     .doc = "a + alpha b; of bool, or",
     .formulas = {formula<3, Over::kBoth>(
         [](auto a, auto b, auto alpha) { return multiply_add(alpha, b, a); })},
     .dtypes = tile::kAll,
     .operands = 2,
     .numbers = {{"alpha", 1}},
     .casts = true,
     .aten = "add"},
    {.name = "Sub",
     .doc = "a - alpha b",
     .formulas = {formula<3, Over::kBoth>(
         [](auto a, auto b, auto alpha) { return multiply_add(-alpha, b, a); })},
     .dtypes = kAllNumbers,
     .operands = 2,
     .numbers = {{"alpha", 1}},
     .accepts = kAllNumbers,
     .casts = true,
     .aten = "sub"},
    {.name = "Mul",
     .doc = "a b; of bool, and",
     .formulas = {formula<2, Over::kBoth>([](auto a, auto b) { return a * b; })},
     .dtypes = tile::kAll,
     .operands = 2,
     .casts = true,
     .aten = "mul"},
    {.name = "Div",
     .doc = "a / b",
     .formulas = {formula<2>([](auto a, auto b) { return a / b; })},
     .dtypes = kAllFloats,
     .operands = 2,
     .gives_floats = true,
     .casts = true,
     .aten = "div"},
    {.name = "Addcmul",
     .doc = "x + value a b",
     .formulas = {formula<4, Over::kBoth>(
         [](auto x, auto a, auto b, auto value) { return x + value * a * b; })},
     .dtypes = kAllNumbers,
     .operands = 3,
     .numbers = {{"value", 1}},
     .cancels = true,
     .aten = "addcmul"},
    {.name = "Addcdiv",
     .doc = "x + value a / b",
     .formulas = {formula<4>([](auto x, auto a, auto b, auto value) { return x + value * a / b; })},
     .dtypes = kAllFloats,
     .operands = 3,
     .numbers = {{"value", 1}},
     .accepts = kAllFloats,
     .cancels = true,
     .aten = "addcdiv"},
    {.name = "Lerp",
     .doc = "from a to b by weight: a + weight (b - a)",
     .formulas = {formula<3>(ANYNPU_FORMULA(lerp))},
     .dtypes = kAllFloats,
     .operands = 2,
     .numbers = {{"weight"}},
     .promotes = false,
     .cancels = true,
     .aten = "lerp"},
    {.name = "Neg",
     .doc = "-x",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return -x; }, 0)},
     .dtypes = kAllNumbers,
     .aten = "neg"},
    {.name = "Abs",
     .doc = "the magnitude of x",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return abs(x); }, 0)},
     .dtypes = kAllNumbers,
     .aten = "abs"},
    {.name = "Ceil",
     .doc = "the least integer that is not below x",
     .formulas = {formula<1>([](auto x) { return ceil(x); }, 0)},
     .dtypes = kAllFloats,
     .aten = "ceil"},
    {.name = "Floor",
     .doc = "the greatest integer that is not above x",
     .formulas = {formula<1>([](auto x) { return floor(x); }, 0)},
     .dtypes = kAllFloats,
     .aten = "floor"},
    function("Reciprocal", "1 / x", "reciprocal", [](auto x) { return 1.0 / x; }),
    function(
        "Sqrt", "√x", "sqrt", [](auto x) { return sqrt(x); }, {-100, 100}, 0),
    function("Rsqrt", "1 / √x", "rsqrt", [](auto x) { return 1.0 / sqrt(x); }),
    function("Exp", "e^x", "exp", [](auto x) { return exp(x); }),
    function("Exp2", "2^x", "exp2", [](auto x) { return exp2(x); }),
    function("Expm1", "e^x - 1", "expm1", [](auto x) { return expm1(x); }),
    function("Log", "ln x", "log", [](auto x) { return log(x); }),
    function("Log2", "the logarithm of x to base 2", "log2", [](auto x) { return log2(x); }),
    function("Log10", "the logarithm of x to base 10", "log10", [](auto x) { return log10(x); }),
    function("Log1p", "ln (1 + x)", "log1p", [](auto x) { return log1p(x); }),
    function("Sin", "sin x", "sin", [](auto x) { return sin(x); }),
    function("Cos", "cos x", "cos", [](auto x) { return cos(x); }),
    function("Tan", "tan x", "tan", [](auto x) { return tan(x); }),
    function("Asin", "arcsin x", "asin", [](auto x) { return asin(x); }, {-1.1, 1.1}),
    function("Acos", "arccos x", "acos", [](auto x) { return acos(x); }, {-1.1, 1.1}),
    function("Atan", "arctan x", "atan", [](auto x) { return atan(x); }),
    function("Sinh", "sinh x", "sinh", [](auto x) { return sinh(x); }),
    function("Cosh", "cosh x", "cosh", [](auto x) { return cosh(x); }),
    function("Tanh", "tanh x", "tanh", [](auto x) { return tanh(x); }, {-10, 10}),
    function("Asinh", "arsinh x", "asinh", [](auto x) { return asinh(x); }),
    function("Acosh", "arcosh x", "acosh", [](auto x) { return acosh(x); }),
    function("Atanh", "artanh x", "atanh", [](auto x) { return atanh(x); }, {-1.1, 1.1}),
    function("Erf", "the error function of x", "erf", [](auto x) { return erf(x); }, {-6, 6}),
    function("Erfc", "1 less that", "erfc", [](auto x) { return erfc(x); }, {-6, 11}),
    function("Ndtr", "Φ(x), the normal distribution's function", "special_ndtr",
             [](auto x) { return ndtr(x); }, {-15, 6}),
    function("Sigmoid", "1 / (1 + e^-x)", "sigmoid", ANYNPU_FORMULA(sigmoid), {-80, 80}),
    {.name = "Relu",
     .doc = "x where it is positive, else 0",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return max(x, like(x, 0)); }, 0)},
     .dtypes = kAllNumbers,
     .aten = "relu"},
    {.name = "ThresholdBackward",
     .doc = "grad where x is above threshold, else 0",
     .formulas = {formula<3, Over::kBoth>(
         [](auto grad, auto x, auto threshold) { return select(x <= threshold, like(grad, 0), grad); }, 0)},
     .dtypes = kAllFloats,
     .operands = 2,
     .numbers = {{"threshold"}},
     .promotes = false,
     .aten = "threshold_backward"},
    {.name = "Maximum",
     .doc = "the larger; NaN where one is",
     .formulas = {formula<2, Over::kBoth>([](auto a, auto b) { return max(a, b); }, 0)},
     .dtypes = tile::kAll,
     .with_number = kAllNumbers,
     .operands = 2,
     .casts = true,
     .aten = "maximum"},
    {.name = "Minimum",
     .doc = "the smaller; NaN where one is",
     .formulas = {formula<2, Over::kBoth>([](auto a, auto b) { return min(a, b); }, 0)},
     .dtypes = tile::kAll,
     .with_number = kAllNumbers,
     .operands = 2,
     .casts = true,
     .aten = "minimum"},
    comparison("Eq", "a == b", "eq", [](auto a, auto b) { return a == b; }),
    comparison("Ne", "a != b", "ne", [](auto a, auto b) { return a != b; }),
    comparison("Lt", "a < b", "lt", [](auto a, auto b) { return a < b; }),
    comparison("Le", "a <= b", "le", [](auto a, auto b) { return a <= b; }),
    comparison("Gt", "a > b", "gt", [](auto a, auto b) { return a > b; }),
    comparison("Ge", "a >= b", "ge", [](auto a, auto b) { return a >= b; }),
    logical("LogicalAnd", "a ≠ 0 and b ≠ 0", "logical_and", [](auto a, auto b) { return a & b; }),
    logical("LogicalOr", "a ≠ 0 or b ≠ 0", "logical_or", [](auto a, auto b) { return a | b; }),
    logical("LogicalXor", "either a ≠ 0 or b ≠ 0", "logical_xor", [](auto a, auto b) { return a ^ b; }),
    {.name = "LogicalNot",
     .doc = "x = 0",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return x == 0.0; }, 0)},
     .dtypes = tile::kAll,
     .compares = true,
     .aten = "logical_not"},
    {.name = "IsFinite",
     .doc = "whether x is neither infinite nor NaN",
     .formulas = {formula<1, Over::kBoth>([](auto x) { return x - x == 0.0; }, 0)},
     .dtypes = tile::kAll,
     .compares = true},
    bitwise("BitwiseAnd", "a and b, bit by bit", "bitwise_and", [](auto a, auto b) { return a & b; }),
    bitwise("BitwiseOr", "a or b, bit by bit", "bitwise_or", [](auto a, auto b) { return a | b; }),
    bitwise("BitwiseXor", "either a or b, bit by bit", "bitwise_xor", [](auto a, auto b) { return a ^ b; }),
    {.name = "Where",
     .doc = "a where mask, else b",
     .formulas = {formula<3, Over::kBoth>([](auto mask, auto a, auto b) { return select(mask, a, b); }, 0)},
     .dtypes = tile::kAll,
     .operands = 3,
     .masks = 0b001,
     .aten = "where"},
    {.name = "MaskedFill",
     .doc = "value where mask, else a",
     .formulas = {formula<3, Over::kBoth>(
         [](auto a, auto mask, auto value) { return select(mask, value, a); }, 0)},
     .dtypes = tile::kAll,
     .operands = 3,
     .masks = 0b010,
     .follows = 0b100,
     .aten = "masked_fill"},
    {.name = "DropoutBackward",
     .doc = "grad scale where mask, else 0",
     .formulas = {formula<3>(
         [](auto grad, auto mask, auto scale) { return grad * select(mask, scale, like(scale, 0)); })},
     .dtypes = kAllFloats,
     .operands = 2,
     .masks = 0b010,
     .numbers = {{"scale"}},
     .aten = "native_dropout_backward"},
    {.name = "Gelu",
     .doc = "x Φ(x), or the approximation by tanh",
     .formulas = {formula<1>(ANYNPU_FORMULA(gelu)), formula<1>(ANYNPU_FORMULA(gelu_tanh), 512)},
     .dtypes = kAllFloats,
     .choice = Choice{"approximate", {"none", "tanh"}},
     .domain = {-8, 8},
     .aten = "gelu"},
    {.name = "GeluBackward",
     .doc = "the gradient of x",
     .formulas = {formula<2>(ANYNPU_FORMULA(gelu_backward), 16),
                  formula<2>(ANYNPU_FORMULA(gelu_tanh_backward), 64)},
     .dtypes = kAllFloats,
     .operands = 2,
     .choice = Choice{"approximate", {"none", "tanh"}},
     .cancels = true,
     .domain = {-8, 8},
     .aten = "gelu_backward"},
    {.name = "Silu",
     .doc = "x sigmoid(x)",
     .formulas = {formula<1>(ANYNPU_FORMULA(silu))},
     .dtypes = kAllFloats,
     .domain = {-80, 80},
     .aten = "silu"},
    {.name = "SiluBackward",
     .doc = "the gradient of x",
     .formulas = {formula<2>(ANYNPU_FORMULA(silu_backward), 16)},
     .dtypes = kAllFloats,
     .operands = 2,
     .cancels = true,
     .domain = {-80, 80},
     .aten = "silu_backward"},
    {.name = "BatchNorm",
     .doc = "(x - mean) factor weight + bias",
     .formulas = {formula<5>(ANYNPU_FORMULA(batch_norm), 16)},
     .dtypes = kAllFloats,
     .operands = 5,
     .cancels = true,
     .domain = {-1, 1}},
    {.name = "BatchNormBackward",
     .doc = "the gradient of x where statistics are those of x",
     .formulas = {formula<7>(ANYNPU_FORMULA(batch_norm_backward), 32)},
     .dtypes = kAllFloats,
     .operands = 7,
     .cancels = true,
     .domain = {-1, 1}},
    {.name = "BatchNormInferenceBackward",
     .doc = "the gradient of x where statistics are given",
     .formulas = {formula<3>(ANYNPU_FORMULA(batch_norm_inference_backward))},
     .dtypes = kAllFloats,
     .operands = 3},
    {.name = "Adam",
     .doc = "one step of Adam or AdamW",
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
     .doc = "one step of them by the largest second average so far",
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
