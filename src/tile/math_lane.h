#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

namespace anynpu::tile::math {

/// What belongs to lanes of floating-point type T: Mask, what comparing them gives; Int, unsigned lanes of
/// the same width, which wrap; kFraction, the bits of the fraction; and for lanes of f32 Wide, as many lanes
/// of f64, with the same Mask. float and double are one lane.
template <class T>
struct LaneTypes;

template <>
struct LaneTypes<float> {
  using Mask = bool;
  using Int = uint32_t;
  using Wide = double;
  static constexpr int kFraction = 23;
};

template <>
struct LaneTypes<double> {
  using Mask = bool;
  using Int = uint64_t;
  static constexpr int kFraction = 52;
};

template <class T>
using Mask = typename LaneTypes<T>::Mask;
template <class T>
using Int = typename LaneTypes<T>::Int;
template <class T>
using Wide = typename LaneTypes<T>::Wide;

// The operations of one lane. Each has one IEEE result; those of other types T are found beside T.

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline double fma(double a, double b, double c) { return std::fma(a, b, c); }
inline float sqrt(float x) { return std::sqrt(x); }
inline double sqrt(double x) { return std::sqrt(x); }
inline float select(bool mask, float yes, float no) { return mask ? yes : no; }
inline double select(bool mask, double yes, double no) { return mask ? yes : no; }
inline uint32_t as_int(float x) { return std::bit_cast<uint32_t>(x); }
inline uint64_t as_int(double x) { return std::bit_cast<uint64_t>(x); }
inline float as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline double as_float(uint64_t bits) { return std::bit_cast<double>(bits); }
inline double widen(float x) { return x; }
inline float narrow(double x) { return static_cast<float>(x); }
/// The nearest whole number, ties to even, of any magnitude.
inline double round_even(double x) { return std::nearbyint(x); }

/// In lanes of the mask what the function returns, in others `otherwise`. The function has no effects, so
/// lanes may run it and drop its result; where no lane of the mask is set, it need not run.
template <class Function>
float if_any(bool mask, const Function& function, float otherwise) {
  return mask ? function() : otherwise;
}

template <class M>
concept LaneMask = requires(M a, M b) {
  { a && b } -> std::same_as<M>;
  { a || b } -> std::same_as<M>;
  { !a } -> std::same_as<M>;
};

/// Int(value) broadcasts a constant; shifts are by constants less than the width, >> brings in zeros.
template <class I, class M>
concept LaneInt = requires(I a, I b) {
  I(uint64_t{1});
  { a + b } -> std::same_as<I>;
  { a - b } -> std::same_as<I>;
  { a & b } -> std::same_as<I>;
  { a | b } -> std::same_as<I>;
  { a ^ b } -> std::same_as<I>;
  { a << 1 } -> std::same_as<I>;
  { a >> 1 } -> std::same_as<I>;
  { a == b } -> std::same_as<M>;
};

/// T(value) broadcasts a double constant, rounded to T. Nothing rounds to other than nearest, ties to even,
/// and subnormal numbers are kept. Comparisons with NaN are false. `-x` flips the sign bit.
template <class T>
concept LaneFloat = (LaneTypes<T>::kFraction > 0) && LaneMask<Mask<T>> && LaneInt<Int<T>, Mask<T>> &&
                    requires(T a, T b, T c, Mask<T> m, Int<T> i) {
                      T(0.5);
                      { -a } -> std::same_as<T>;
                      { a + b } -> std::same_as<T>;
                      { a - b } -> std::same_as<T>;
                      { a * b } -> std::same_as<T>;
                      { a / b } -> std::same_as<T>;
                      { a < b } -> std::same_as<Mask<T>>;
                      { a == b } -> std::same_as<Mask<T>>;
                      { fma(a, b, c) } -> std::same_as<T>;
                      { sqrt(a) } -> std::same_as<T>;
                      { select(m, a, b) } -> std::same_as<T>;
                      { as_int(a) } -> std::same_as<Int<T>>;
                      { as_float(i) } -> std::same_as<T>;
                    };

/// The contract of a lane value: lanes of f32 as the functions of tile/math.h need them.
template <class V>
concept LaneValue = LaneFloat<V> && LaneFloat<Wide<V>> && std::same_as<Mask<V>, Mask<Wide<V>>> &&
                    requires(V x, Wide<V> w, Mask<V> m, V (*function)()) {
                      { widen(x) } -> std::same_as<Wide<V>>;
                      { narrow(w) } -> std::same_as<V>;
                      { round_even(w) } -> std::same_as<Wide<V>>;
                      { if_any(m, function, x) } -> std::same_as<V>;
                    };

// What follows from them.

/// c[0] + c[1] x + c[2] x^2 + ..., by fma alone: neighbours are joined to coefficients of a polynomial in x^2
/// (Estrin's scheme), so that few steps wait for each other, or c[0] is split off (Horner's), where that
/// takes no more of them.
template <class T, size_t n>
T polynomial(T x, const std::array<T, n>& c) {
  if constexpr (n == 1) {
    return c[0];
  } else if constexpr (std::has_single_bit(n - 1)) {
    const auto rest = [&]<size_t... i>(std::index_sequence<i...>) {
      return std::array{c[i + 1]...};
    }(std::make_index_sequence<n - 1>());
    return fma(polynomial(x, rest), x, c[0]);
  } else {
    const auto pair = [&](size_t i) { return i + 1 < n ? fma(c[i + 1], x, c[i]) : c[i]; };
    const auto pairs = [&]<size_t... i>(std::index_sequence<i...>) {
      return std::array{pair(2 * i)...};
    }(std::make_index_sequence<(n + 1) / 2>());
    return polynomial(x * x, pairs);
  }
}

/// c0 comes last, so that where it dominates there is one rounding.
template <class T, class... Rest>
T polynomial(T x, double c0, Rest... rest) {
  if constexpr (sizeof...(rest) == 0)
    return T(c0);
  else
    return fma(polynomial(x, std::array{T(rest)...}), x, T(c0));
}

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The bits of a number.

template <class T>
constexpr int fraction_bits() {
  return LaneTypes<T>::kFraction;
}
template <class T>
constexpr uint64_t sign_bit() {
  return uint64_t{1} << (fraction_bits<T>() == 23 ? 31 : 63);
}

template <class T>
T abs(T x) {
  return as_float(as_int(x) & Int<T>(sign_bit<T>() - 1));
}

template <class T>
T copysign(T magnitude, T sign) {
  const Int<T> bit(sign_bit<T>());
  return as_float((as_int(magnitude) & Int<T>(sign_bit<T>() - 1)) | (as_int(sign) & bit));
}

/// The lesser of both; NaN as it is.
template <class T>
T at_most(T x, double limit) {
  return select(T(limit) < x, T(limit), x);
}

/// `x` within [low, high]; NaN as it is.
template <class T>
T clamp(T x, double low, double high) {
  return at_most(select(x < T(low), T(low), x), high);
}

/// A whole number, also as an integer: the low 9 bits (f32) or 12 bits (f64) of `bits`, in two's complement.
template <class T>
struct Whole {
  T value;
  Int<T> bits;
};

/// x * factor rounded to a whole number of magnitude up to 2^21 (f32) or 2^50 (f64), ties to even.
template <class T>
Whole<T> round_product(T x, double factor) {
  const T magic(0x1.8p0 *
                static_cast<double>(uint64_t{1} << fraction_bits<T>()));  // leaves no bits of fractions
  const T sum = fma(x, T(factor), magic);
  return {sum - magic, as_int(sum)};
}

/// 2^n for an exponent in the range of normal numbers.
template <class T>
T power_of_two(Int<T> n) {
  return as_float((n << fraction_bits<T>()) + as_int(T(1)));
}

}  // namespace anynpu::tile::math
