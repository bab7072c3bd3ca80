#include <algorithm>

#include "base/error.h"
#include "ops/lines.h"
#include "ops/nn/normalizations.h"

namespace anynpu::ops {
namespace {

template <class V>
std::vector<V> listed(const V& result) {
  return {result};
}
template <class... V>
auto listed(const std::tuple<V...>& results) {
  return std::apply([](const auto&... result) { return std::vector{result...}; }, results);
}

/// Applies a generic lambda of (along, arguments...) to lists.
template <size_t kArguments, size_t kResults = 1, class F>
LineFormula formula(F function, double ulps) {
  const auto applied = [function]<class A, class V, size_t... i>(const A& along, std::span<const V> v,
                                                                 std::index_sequence<i...>) {
    return listed(function(along, v[i]...));
  };
  constexpr auto all = std::make_index_sequence<kArguments>();
  return {kArguments, kResults, ulps,
          [=](const TilesAlong& along, std::span<const tile::Expr> v) { return applied(along, v, all); },
          [=](LinesAlong along, std::span<const Line> v) { return applied(along, v, all); }};
}

#define ANYNPU_FORMULA(function) [](const auto& along, const auto&... v) { return function(along, v...); }

const std::vector<LineOp> kOps = {
    {.name = "Softmax", .formula = formula<1>(ANYNPU_FORMULA(softmax), 64)},
    {.name = "SoftmaxBackward", .formula = formula<2>(ANYNPU_FORMULA(softmax_backward), 64), .operands = 2},
    {.name = "LogSoftmax", .formula = formula<1>(ANYNPU_FORMULA(log_softmax), 8)},
    {.name = "LogSoftmaxBackward",
     .formula = formula<2>(ANYNPU_FORMULA(log_softmax_backward), 256),
     .operands = 2},
    {.name = "LayerNorm",
     .formula = formula<4, 3>(ANYNPU_FORMULA(layer_norm), 64),
     .operands = 3,
     .numbers = 1,
     .short_results = 0b110},
    {.name = "LayerNormBackward",
     .formula = formula<5>(ANYNPU_FORMULA(layer_norm_backward), 1024),
     .operands = 5,
     .one_for_line = 0b11000},
    {.name = "LayerNormBackwardAffine",
     .formula = formula<4, 2>(ANYNPU_FORMULA(layer_norm_backward_affine), 64),
     .operands = 4,
     .short_results = 0b11},
    {.name = "Sum",
     .formula = formula<1>([](const auto& along, const auto& x) { return along.sum(x); }, 16),
     .short_results = 0b1},
};

#undef ANYNPU_FORMULA

}  // namespace

std::span<const LineOp> line_ops() { return kOps; }

const LineOp& line_op(std::string_view name) {
  const auto found = std::find_if(kOps.begin(), kOps.end(), [&](const auto& op) { return op.name == name; });
  require(found != kOps.end(), ErrorCode::kInternal, "there is no operator ", name);
  return *found;
}

}  // namespace anynpu::ops
