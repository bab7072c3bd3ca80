#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include "ops/lines.h"

namespace anynpu::ops {

// The rows of operators of lines, and what they are written with.

std::vector<LineOp> normalizations();
std::vector<LineOp> reductions();
std::vector<LineOp> scans();

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
LineFormula line_formula(F function) {
  const auto applied = [function]<class A, class V, size_t... i>(const A& along, std::span<const V> v,
                                                                 std::index_sequence<i...>) {
    return listed(function(along, v[i]...));
  };
  constexpr auto all = std::make_index_sequence<kArguments>();
  return {kArguments, kResults,
          [=](const TilesAlong& along, std::span<const tile::Expr> v) { return applied(along, v, all); },
          [=](LinesAlong along, std::span<const Line> v) { return applied(along, v, all); }};
}

}  // namespace anynpu::ops
