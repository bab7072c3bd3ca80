#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tile/builder.h"
#include "tile/lane.h"

namespace anynpu::ops {

// What formulas use beside operators and <cmath>, for numbers as tile/builder.h has it for tile values.
template <class V>
concept Scalar = std::is_arithmetic_v<V>;
template <Scalar V>
V like(V, double literal) {
  return static_cast<V>(literal);
}
inline tile::Expr like(const tile::Expr& x, double literal) { return x.like(literal); }
template <Scalar V>
V select(bool mask, V a, V b) {
  return mask ? a : b;
}
/// NaN where one of them is; -0 is smaller than 0.
template <Scalar V>
V min(V a, V b) {
  return tile::lane::min(a, b);
}
template <Scalar V>
V max(V a, V b) {
  return tile::lane::max(a, b);
}

/// a b + c; of floats rounded once.
template <Scalar V>
V multiply_add(V a, V b, V c) {
  if constexpr (std::is_floating_point_v<V>) return std::fma(a, b, c);
  return a * b + c;
}
tile::Expr multiply_add(const tile::Expr& a, const tile::Expr& b, const tile::Expr& c);

/// A function of elements, written once as a generic lambda: over tile values it emits code, over double and
/// int64_t it is the reference. The lambda returns one result, or a tuple of them.
struct Formula {
  size_t arguments, results;
  double ulps;  ///< how far from the exact value it may be, in units of the last place of the compute type
  std::function<std::vector<tile::Expr>(std::span<const tile::Expr>)> emit;
  std::function<std::vector<double>(std::span<const double>)> of_floats;      ///< empty: has no floats
  std::function<std::vector<int64_t>(std::span<const int64_t>)> of_integers;  ///< empty: has no integers
};

enum class Over : uint8_t { kFloats, kIntegers, kBoth };

template <class V, class R>
std::vector<V> listed(const R& result) {
  return {static_cast<V>(result)};
}
template <class V, class... R>
std::vector<V> listed(const std::tuple<R...>& results) {
  return std::apply([](const R&... result) { return std::vector<V>{static_cast<V>(result)...}; }, results);
}

template <size_t kArguments, Over over = Over::kFloats, size_t kResults = 1, class F>
Formula formula(F function, double ulps = 4) {
  const auto applied = [function]<class V, size_t... i>(std::span<const V> v, std::index_sequence<i...>) {
    return listed<V>(function(v[i]...));
  };
  constexpr auto all = std::make_index_sequence<kArguments>();
  Formula made = {kArguments, kResults, ulps, {}, {}, {}};
  made.emit = [=](std::span<const tile::Expr> v) { return applied(v, all); };
  if constexpr (over != Over::kIntegers)
    made.of_floats = [=](std::span<const double> v) { return applied(v, all); };
  if constexpr (over != Over::kFloats)
    made.of_integers = [=](std::span<const int64_t> v) { return applied(v, all); };
  return made;
}

}  // namespace anynpu::ops
