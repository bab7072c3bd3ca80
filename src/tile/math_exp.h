#pragma once

#include "tile/math_lane.h"

namespace anynpu::tile::math {

inline constexpr double kLog2E = 0x1.71547652b82fep+0;
inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;
inline constexpr double kLn2High = 0x1.62e43p-1;  // kLn2 = kLn2High + kLn2Low, both f32
inline constexpr double kLn2Low = -0x1.05c61p-29;

/// e^x = (1 + tail) * 2^n, tail from -0.3 to 0.42.
template <class V>
struct ExpParts {
  V tail;
  Int<V> n;
};

/// p(r) of e^r = 1 + r + r^2 p(r), |r| <= ln(2)/2, relative 2^-28.2, Remez with f32 coefficients (Sollya).
template <class V>
V exp_curve(V r) {
  return polynomial(r, 0x1.fffffcp-2, 0x1.55549p-3, 0x1.5558ap-5, 0x1.123ac8p-7, 0x1.6a604ap-10);
}

/// For |x| < 200 or NaN.
template <class V>
ExpParts<V> exp_parts(V x) {
  const auto [n, bits] = round_product(x, kLog2E);
  const V r = fma(n, V(-kLn2Low), fma(n, V(-kLn2High), x));
  return {fma(r * r, exp_curve(r), r), bits};
}

/// y * 2^n, rounded once, |n| < 250. Takes n as Whole::bits.
template <class V>
V scale(V y, Int<V> n) {
  const Int<V> half = n >> 1;  // the bits above the 9 that count are even
  return y * power_of_two<V>(half) * power_of_two<V>(n - half);
}

template <LaneValue V>
V exp(V x) {
  const auto [tail, n] = exp_parts(clamp(x, -104, 89));
  const Int<V> half = n >> 1;  // as in scale()
  const V power = power_of_two<V>(half);
  return fma(power, tail, power) * power_of_two<V>(n - half);
}

/// Polynomial: 2^r = 1 + r p(r), |r| <= 1/2, relative 2^-28, Remez with f32 coefficients (Sollya).
template <LaneValue V>
V exp2(V x) {
  x = clamp(x, -151, 129);
  const auto [n, bits] = round_product(x, 1);
  const V r = x - n;
  const V p = polynomial(r, 0x1.62e43p-1, 0x1.ebfbd8p-3, 0x1.c6af74p-5, 0x1.3b3096p-7, 0x1.5f0ca8p-10,
                         0x1.3fad5cp-13);
  return scale(fma(r, p, V(1)), bits);
}

/// e^r - 1, |r| <= ln(2)/2, without cancellation.
/// Polynomial: 1 + r p(r) for (e^r - 1) / r, relative 2^-37.5, Remez with f64 coefficients (Sollya).
template <class W>
W expm1_near_zero(W r) {
  return r * polynomial(r, 1, 0x1.0000000017409p-1, 0x1.555555737a0c5p-3, 0x1.555554f2eecc1p-5,
                        0x1.1110b1c9b0705p-7, 0x1.6c17675a96c95p-10, 0x1.a17002446f702p-13,
                        0x1.a0039c3dcb5fep-16);
}

/// 2^n and, with tail >= -0.3, (1 + tail) * 2^n in f64.
template <class W>
struct WideExp {
  W power, tail;
  W value() const { return fma(power, tail, power); }
  W minus_one() const { return fma(power, tail, power - W(1)); }  ///< without cancellation; +0 for -0
};

/// e^x for |x| < 700 or NaN, relative 2^-37.
template <class W>
WideExp<W> exp_wide(W x) {
  const auto [n, bits] = round_product(x, kLog2E);
  return {power_of_two<W>(bits), expm1_near_zero(fma(n, W(-kLn2), x))};
}

/// 2^x, relative 2^-37, where it is a number of f32; beyond that what narrows to 0 or infinity.
template <class W>
WideExp<W> exp2_wide(W x) {
  x = clamp(x, -200, 200);
  const auto [n, bits] = round_product(x, 1);
  return {power_of_two<W>(bits), expm1_near_zero((x - n) * W(kLn2))};
}

template <LaneValue V>
V expm1(V x) {
  return copysign(narrow(exp_wide(widen(clamp(x, -30, 90))).minus_one()), x);
}

template <LaneValue V>
V sinh(V x) {
  const Wide<V> e = exp_wide(widen(at_most(abs(x), 91))).minus_one();
  return copysign(narrow(Wide<V>(0.5) * (e + e / (e + Wide<V>(1)))), x);
}

template <LaneValue V>
V cosh(V x) {
  const Wide<V> e = exp_wide(widen(at_most(abs(x), 91))).value();
  return narrow(Wide<V>(0.5) * (e + Wide<V>(1) / e));
}

/// Near zero a polynomial, elsewhere 1 - 2 / (e^2x + 1).
/// Polynomial: tanh(x) = x + x^3 p(x^2), |x| <= 0.9, relative 2^-25.9, Remez with f32 coefficients (Sollya).
template <LaneValue V>
V tanh(V x) {
  const V a = abs(x), z = x * x;
  const V p = polynomial(z, -0x1.555504p-2, 0x1.11017ap-3, -0x1.b81622p-5, 0x1.567e5ap-6, -0x1.c19544p-8,
                         0x1.55d49p-10);
  const V near = fma(a * z, p, a);
  const auto [tail, n] = exp_parts(at_most(a + a, 20));
  const V power = power_of_two<V>(n);
  const V far = V(1) - V(2) / fma(power, tail, power + V(1));
  return copysign(select(a < V(0.9), near, far), x);
}

}  // namespace anynpu::tile::math
