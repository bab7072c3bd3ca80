#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tile/builder.h"

namespace anynpu::ops {

/// A number of a reference, and how far from it the same steps may end where each rounds: to first order, in
/// units of the last place of 1. What is not finite has no error.
struct Rounded {
  long double value = 0;
  double error = 0;

  Rounded() = default;
  Rounded(long double exact) : value(exact) {}  // NOLINT(google-explicit-constructor): formulas have literals
  /// Of a step that is within `ulps`, from operands whose errors alone move it by `inherited`.
  Rounded(long double result, long double inherited, double ulps = 0.5)
      : value(result),
        error(std::isfinite(result) ? static_cast<double>(inherited + ulps * std::abs(result)) : 0) {}
};

inline Rounded operator-(const Rounded& a) { return {-a.value, a.error, 0}; }
inline Rounded operator+(const Rounded& a, const Rounded& b) {
  return {a.value + b.value, a.error + b.error};
}
inline Rounded operator-(const Rounded& a, const Rounded& b) {
  return {a.value - b.value, a.error + b.error};
}
inline Rounded operator*(const Rounded& a, const Rounded& b) {
  return {a.value * b.value, std::abs(a.value) * b.error + std::abs(b.value) * a.error};
}
inline Rounded operator/(const Rounded& a, const Rounded& b) {
  const long double quotient = a.value / b.value;
  return {quotient, (a.error + std::abs(quotient) * b.error) / std::abs(b.value)};
}
inline Rounded operator!=(const Rounded& a, const Rounded& b) { return a.value != b.value; }
inline Rounded exp(const Rounded& a) {
  const long double result = std::exp(a.value);
  return {result, result * a.error, 2};
}
inline Rounded log(const Rounded& a) { return {std::log(a.value), a.error / std::abs(a.value), 2}; }
inline Rounded sqrt(const Rounded& a) {
  const long double result = std::sqrt(a.value);
  return {result, a.error == 0 ? 0 : a.error / (2 * result)};
}

/// Lines of numbers, for references: elementwise arithmetic, where a line of length 1 is broadcast.
class Line {
 public:
  Line(double number) : numbers_{number} {}  // NOLINT(google-explicit-constructor): formulas have literals
  explicit Line(std::vector<Rounded> numbers) : numbers_(std::move(numbers)) {}

  size_t size() const { return numbers_.size(); }
  const Rounded& operator[](size_t i) const { return numbers_.size() == 1 ? numbers_[0] : numbers_[i]; }

  template <class F>
  static Line map(const F& function, const Line& a) {
    return zip([&](const Rounded& x, const Rounded&) { return function(x); }, a, a);
  }
  template <class F>
  static Line zip(const F& function, const Line& a, const Line& b) {
    std::vector<Rounded> numbers(a.size() == 1 ? b.size() : a.size());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = function(a[i], b[i]);
    return Line(std::move(numbers));
  }

 private:
  std::vector<Rounded> numbers_;
};

inline Line operator-(const Line& a) { return Line::map(std::negate<>(), a); }
inline Line operator+(const Line& a, const Line& b) { return Line::zip(std::plus<>(), a, b); }
inline Line operator-(const Line& a, const Line& b) { return Line::zip(std::minus<>(), a, b); }
inline Line operator*(const Line& a, const Line& b) { return Line::zip(std::multiplies<>(), a, b); }
inline Line operator/(const Line& a, const Line& b) { return Line::zip(std::divides<>(), a, b); }
inline Line operator!=(const Line& a, const Line& b) { return Line::zip(std::not_equal_to<>(), a, b); }
inline Line exp(const Line& a) {
  return Line::map([](const Rounded& x) { return exp(x); }, a);
}
inline Line log(const Line& a) {
  return Line::map([](const Rounded& x) { return log(x); }, a);
}
inline Line sqrt(const Line& a) {
  return Line::map([](const Rounded& x) { return sqrt(x); }, a);
}

/// Mean, and the sum of the squares of the distances from it.
template <class V>
struct Moments {
  V mean, squares;
};

/// What formulas of lines can do along a line: with numbers, in the order that tiles have.
class LinesAlong {
 public:
  explicit LinesAlong(int64_t length) : length_(length) {}
  double length() const { return static_cast<double>(length_); }
  Line sum(const Line& x) const;
  Line prod(const Line& x) const;
  Line max(const Line& x) const { return one(extreme(x, true).value); }  ///< NaN where there is one
  Line min(const Line& x) const { return one(extreme(x, false).value); }
  Line any(const Line& x) const { return length_ == 0 ? 0 : max(x); }     ///< of truths: false of none
  Line all(const Line& x) const { return length_ == 0 ? 1 : min(x); }     ///< true of none
  Line argmax(const Line& x) const { return extreme(x, true).position; }  ///< the first
  Line argmin(const Line& x) const { return extreme(x, false).position; }
  Line at(const Line& x, const Line& position) const {
    return one(x[static_cast<size_t>(position[0].value)]);
  }
  Line running_sum(const Line& x) const;
  Line running_prod(const Line& x) const;
  Moments<Line> moments(const Line& x) const;

 private:
  struct Extreme {
    Rounded value;
    double position;
  };
  static Line one(const Rounded& number) { return Line(std::vector{number}); }
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
