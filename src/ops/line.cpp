#include "ops/line.h"

#include <limits>

#include "base/error.h"

namespace anynpu::ops {

Line LinesAlong::sum(const Line& x) const {
  long double sum = 0;
  for (int64_t i = 0; i < length_; ++i) sum += x[static_cast<size_t>(i)];
  return static_cast<double>(sum);
}

Line LinesAlong::prod(const Line& x) const {
  long double product = 1;
  for (int64_t i = 0; i < length_; ++i) product *= x[static_cast<size_t>(i)];
  return static_cast<double>(product);
}

LinesAlong::Extreme LinesAlong::extreme(const Line& x, bool greatest) const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Extreme extreme = {greatest ? -kInfinity : kInfinity, length_ == 0 ? -1.0 : 0.0};
  for (int64_t i = 0; i < length_; ++i) {
    const double value = x[static_cast<size_t>(i)];
    if (std::isnan(value)) return {value, static_cast<double>(i)};
    if (greatest ? value > extreme.value : value < extreme.value) extreme = {value, static_cast<double>(i)};
  }
  return extreme;
}

namespace {

template <class F>
Line running(int64_t length, const Line& x, double start, const F& function) {
  std::vector<double> values(static_cast<size_t>(length));
  for (size_t i = 0; i < values.size(); ++i) values[i] = start = function(start, x[i]);
  return Line(std::move(values));
}

}  // namespace

Line LinesAlong::running_sum(const Line& x) const { return running(length_, x, 0, std::plus<>()); }
Line LinesAlong::running_prod(const Line& x) const { return running(length_, x, 1, std::multiplies<>()); }

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
