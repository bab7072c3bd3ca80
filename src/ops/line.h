#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "tile/builder.h"

namespace anynpu::ops {

/// Lines of numbers, for references: elementwise arithmetic, where a line of length 1 is broadcast.
class Line {
 public:
  Line(double number) : values_{number} {}  // NOLINT(google-explicit-constructor): formulas have literals
  explicit Line(std::vector<double> values) : values_(std::move(values)) {}

  size_t size() const { return values_.size(); }
  double operator[](size_t i) const { return values_.size() == 1 ? values_[0] : values_[i]; }

  template <class F>
  static Line map(const F& function, const Line& a) {
    return zip([&](double x, double) { return function(x); }, a, a);
  }
  template <class F>
  static Line zip(const F& function, const Line& a, const Line& b) {
    std::vector<double> values(a.size() == 1 ? b.size() : a.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = function(a[i], b[i]);
    return Line(std::move(values));
  }

 private:
  std::vector<double> values_;
};

inline Line operator-(const Line& a) {
  return Line::map([](double x) { return -x; }, a);
}
inline Line operator+(const Line& a, const Line& b) { return Line::zip(std::plus<>(), a, b); }
inline Line operator-(const Line& a, const Line& b) { return Line::zip(std::minus<>(), a, b); }
inline Line operator*(const Line& a, const Line& b) { return Line::zip(std::multiplies<>(), a, b); }
inline Line operator/(const Line& a, const Line& b) { return Line::zip(std::divides<>(), a, b); }
inline Line exp(const Line& a) {
  return Line::map([](double x) { return std::exp(x); }, a);
}
inline Line log(const Line& a) {
  return Line::map([](double x) { return std::log(x); }, a);
}
inline Line sqrt(const Line& a) {
  return Line::map([](double x) { return std::sqrt(x); }, a);
}

/// Mean, and the sum of the squares of the distances from it.
template <class V>
struct Moments {
  V mean, squares;
};

/// What formulas of lines can do along a line: with numbers.
class LinesAlong {
 public:
  explicit LinesAlong(int64_t length) : length_(length) {}
  double length() const { return static_cast<double>(length_); }
  Line sum(const Line& x) const;
  Line max(const Line& x) const;  ///< NaN where there is one
  Moments<Line> moments(const Line& x) const;

 private:
  int64_t length_;
};

/// The same with tiles: along their columns or their rows.
class TilesAlong {
 public:
  /// `count` elements along `axis`, and the same as a value of the type that is computed with.
  TilesAlong(tile::Axis axis, tile::Index count, tile::Expr length)
      : axis_(axis), count_(std::move(count)), length_(length) {}
  const tile::Expr& length() const { return length_; }
  tile::Expr sum(const tile::Expr& x) const {
    return reduce(x, tile::Opcode::kRowSum, tile::Opcode::kColSum);
  }
  tile::Expr max(const tile::Expr& x) const {
    return reduce(x, tile::Opcode::kRowMax, tile::Opcode::kColMax);
  }
  Moments<tile::Expr> moments(const tile::Expr& x) const;

 private:
  tile::Expr reduce(const tile::Expr& x, tile::Opcode along_cols, tile::Opcode along_rows) const {
    return x.builder().op(axis_ == tile::Axis::kCols ? along_cols : along_rows, {whole(x)});
  }
  /// A value that is the same everywhere along its line counts as often as the line has elements.
  tile::Expr whole(const tile::Expr& x) const;

  tile::Axis axis_;
  tile::Index count_;
  tile::Expr length_;
};

}  // namespace anynpu::ops
