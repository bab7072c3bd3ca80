#include "ops/line.h"

#include <limits>
#include <type_traits>

#include "base/error.h"
#include "tile/reduce.h"

namespace anynpu::ops {

namespace {

template <class Function>
struct Reduction {
  using State = Rounded;
  static State identity() { return std::is_same_v<Function, std::plus<>> ? 0 : 1; }
  static State merge(const State& a, const State& b) {
    return a.value == identity().value && a.error == 0 ? b : Function()(a, b);
  }
  static State take(const State& a, const State& b) { return merge(a, b); }
};

template <class Function>
Line reduced(int64_t length, const Line& x) {
  const auto element = [&](int64_t i) { return x[static_cast<size_t>(i)]; };
  return Line(std::vector{tile::reduce<Reduction<Function>>(length, element)});
}

template <class Function>
Line running(int64_t length, const Line& x) {
  std::vector<Rounded> numbers(static_cast<size_t>(length));
  Rounded last = Reduction<Function>::identity();
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = last = Reduction<Function>::take(last, x[i]);
  return Line(std::move(numbers));
}

}  // namespace

Line LinesAlong::sum(const Line& x) const { return reduced<std::plus<>>(length_, x); }
Line LinesAlong::prod(const Line& x) const { return reduced<std::multiplies<>>(length_, x); }
Line LinesAlong::running_sum(const Line& x) const { return running<std::plus<>>(length_, x); }
Line LinesAlong::running_prod(const Line& x) const { return running<std::multiplies<>>(length_, x); }

LinesAlong::Extreme LinesAlong::extreme(const Line& x, bool greatest) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Extreme extreme = {greatest ? -kInfinity : kInfinity, length_ == 0 ? -1.0 : 0.0};
  double error = 0;
  for (int64_t i = 0; i < length_; ++i) {
    const Rounded& number = x[static_cast<size_t>(i)];
    if (std::isnan(number.value)) return {number, static_cast<double>(i)};
    error = std::max(error, number.error);
    if (greatest ? number.value > extreme.value.value : number.value < extreme.value.value)
      extreme = {number, static_cast<double>(i)};
  }
  extreme.value.error = error;
  return extreme;
}

Moments<Line> LinesAlong::moments(const Line& x) const {
  if (length_ == 0) return {0, 0};
  const Line mean = sum(x) / length();
  const Line distance = x - mean;
  return {mean, sum(distance * distance)};
}

tile::Expr TilesAlong::at(const tile::Expr& x, const tile::Expr& position) const {
  const tile::Expr places = place_of(x.builder().iota(axis_, count_));
  return sum(select(places == position, x, x.like(0)));
}

tile::Expr TilesAlong::scan(const tile::Expr& x, Opcode opcode) const {
  require(axis_ == tile::Axis::kCols, ErrorCode::kInternal, "running values of lines along rows");
  return x.builder().op(opcode, {x});
}

tile::Expr TilesAlong::place_of(const tile::Expr& index) const {
  return first_.is(0) ? index : index + index.builder().index(first_);
}

Moments<tile::Expr> TilesAlong::moments(const tile::Expr& x) const {
  const bool cols = axis_ == tile::Axis::kCols;
  const auto both = x.builder().ops(cols ? tile::Opcode::kRowMoments : tile::Opcode::kColMoments, {x});
  return {both[0], both[1]};
}

}  // namespace anynpu::ops
