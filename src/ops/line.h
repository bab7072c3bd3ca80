#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
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
inline Line operator!=(const Line& a, const Line& b) { return Line::zip(std::not_equal_to<>(), a, b); }
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
  Line prod(const Line& x) const;
  Line max(const Line& x) const { return extreme(x, true).value; }  ///< NaN where there is one
  Line min(const Line& x) const { return extreme(x, false).value; }
  Line any(const Line& x) const { return length_ == 0 ? 0 : max(x); }     ///< of truths: false of none
  Line all(const Line& x) const { return length_ == 0 ? 1 : min(x); }     ///< true of none
  Line argmax(const Line& x) const { return extreme(x, true).position; }  ///< the first
  Line argmin(const Line& x) const { return extreme(x, false).position; }
  Line at(const Line& x, const Line& position) const { return x[static_cast<size_t>(position[0])]; }
  Line running_sum(const Line& x) const;
  Line running_prod(const Line& x) const;
  Moments<Line> moments(const Line& x) const;

 private:
  struct Extreme {
    double value, position;
  };
  Extreme extreme(const Line& x, bool greatest) const;

  int64_t length_;
};

/// The same with tiles: along their columns or their rows.
class TilesAlong {
 public:
  /// What one has is places [first, first + count) of a line that stands for `length` elements.
  TilesAlong(tile::Axis axis, tile::Index first, tile::Index count, tile::Expr length)
      : axis_(axis), first_(std::move(first)), count_(std::move(count)), length_(length) {}

  const tile::Expr& length() const { return length_; }  ///< of the type that is computed with
  tile::Expr sum(const tile::Expr& x) const { return reduce(x, Opcode::kRowSum, Opcode::kColSum); }
  tile::Expr prod(const tile::Expr& x) const { return reduce(x, Opcode::kRowProd, Opcode::kColProd); }
  tile::Expr max(const tile::Expr& x) const { return reduce(x, Opcode::kRowMax, Opcode::kColMax); }
  tile::Expr min(const tile::Expr& x) const { return reduce(x, Opcode::kRowMin, Opcode::kColMin); }
  tile::Expr any(const tile::Expr& x) const { return max(x); }
  tile::Expr all(const tile::Expr& x) const { return min(x); }
  tile::Expr argmax(const tile::Expr& x) const {
    return place_of(reduce(x, Opcode::kRowArgmax, Opcode::kColArgmax));
  }
  tile::Expr argmin(const tile::Expr& x) const {
    return place_of(reduce(x, Opcode::kRowArgmin, Opcode::kColArgmin));
  }
  /// Of an integer `x`, the element at a position that one of the functions above found.
  tile::Expr at(const tile::Expr& x, const tile::Expr& position) const;
  tile::Expr running_sum(const tile::Expr& x) const { return scan(x, Opcode::kRowScanSum); }
  tile::Expr running_prod(const tile::Expr& x) const { return scan(x, Opcode::kRowScanProd); }
  Moments<tile::Expr> moments(const tile::Expr& x) const;

 private:
  using Opcode = tile::Opcode;
  tile::Expr reduce(const tile::Expr& x, Opcode along_cols, Opcode along_rows) const {
    return x.builder().op(axis_ == tile::Axis::kCols ? along_cols : along_rows, {x});
  }
  tile::Expr scan(const tile::Expr& x, Opcode opcode) const;
  tile::Expr place_of(const tile::Expr& index) const;

  tile::Axis axis_;
  tile::Index first_, count_;
  tile::Expr length_;
};

}  // namespace anynpu::ops
