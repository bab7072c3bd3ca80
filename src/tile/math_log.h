#pragma once

#include "tile/math_exp.h"

namespace anynpu::tile::math {

/// x = (1 + fraction) * 2^exponent.
template <class T>
struct LogParts {
  T exponent;
  T fraction;
};

/// For x positive and normal; 1 + fraction is from low to 2 * low, 1/2 < low <= 1.
template <class T>
LogParts<T> log_parts(T x, double low) {
  constexpr int kBits = fraction_bits<T>();
  constexpr double kWhole = static_cast<double>(uint64_t{1} << kBits);
  constexpr double kBias = kBits == 23 ? 127 : 1023;
  const Int<T> bits = as_int(x) + (as_int(T(1)) - as_int(T(low)));
  const Int<T> fraction = bits & Int<T>((uint64_t{1} << kBits) - 1);
  return {as_float((bits >> kBits) | as_int(T(kWhole))) - T(kWhole + kBias),
          as_float(fraction + as_int(T(low))) - T(1)};
}

/// `r`, the logarithm of a positive number `x`, with what it is at others.
template <class T>
T complete_log(T x, T r) {
  r = select(x < T(kInfinity), r, x);
  return select(T(0) < x, r, select(x == T(0), T(-kInfinity), T(kNaN)));
}

/// Polynomial: log(1 + f) = f + f^2 p(f), |f| <= 1/3, relative 2^-27.6, Remez with f32 coefficients (Sollya).
template <LaneValue V>
V log(V x) {
  const auto tiny = x < V(0x1p-126);
  const auto [exponent, f] = log_parts(select(tiny, x * V(0x1p23), x), 2.0 / 3);
  const V e = exponent - select(tiny, V(23), V(0));
  const V p = polynomial(f, -0x1p-1, 0x1.555502p-2, -0x1.ffff14p-3, 0x1.99d1c6p-3, -0x1.559804p-3,
                         0x1.1ec0dp-3, -0x1.f3a788p-4, 0x1.1ec6ep-3, -0x1.06cedcp-3);
  const V low = fma(e, V(kLn2Low), f * f * p);
  return complete_log(x, fma(e, V(kLn2High), f + low));
}

/// log(1 + f), relative 2^-44, sqrt(1/2) <= 1 + f < sqrt(2).
/// Polynomial: log(1 + f) = s q(s^2), s = f / (2 + f), relative 2^-44.9, Remez with f64 coefficients
/// (Sollya).
template <class W>
W log1p_near_zero(W f) {
  const W s = f / (W(2) + f);
  return s * polynomial(s * s, 2, 0x1.555555561d974p-1, 0x1.999996ab04d02p-2, 0x1.2494113d0a5d8p-2,
                        0x1.c62b4c921411ep-3, 0x1.911283aa53685p-3);
}

inline constexpr double kSqrtHalf = 0x1.6a09e667f3bcdp-1;

/// log(x) / log(base) in f64, relative 2^-43, for any x: the base by log(2) / log(base) and 1 / log(base).
template <class W>
W log_wide(W x, double log_2, double log_e) {
  const auto [exponent, f] = log_parts(x, kSqrtHalf);
  return complete_log(x, fma(exponent, W(log_2), log1p_near_zero(f) * W(log_e)));
}

template <LaneValue V>
V log2(V x) {
  return narrow(log_wide(widen(x), 1, kLog2E));
}

template <LaneValue V>
V log10(V x) {
  return narrow(log_wide(widen(x), 0x1.34413509f79ffp-2, 0x1.bcb7b1526e50ep-2));
}

/// log(1 + u) in f64, relative 2^-43, u >= -1; NaN below, +0 for -0.
template <class W>
W log1p_wide(W u) {
  const W sum = W(1) + u;
  const W lost = select(u < W(0x1p53), u - (sum - W(1)), W(0));
  const W correction = select(W(0) < sum, lost / sum, W(0));
  return log_wide(sum, kLn2, 1) + correction;
}

template <LaneValue V>
V log1p(V x) {
  return copysign(narrow(log1p_wide(widen(x))), x);
}

template <LaneValue V>
V asinh(V x) {
  using W = Wide<V>;
  const W a = widen(abs(x)), z = a * a;
  const W r = log1p_wide(a + z / (W(1) + sqrt(W(1) + z)));
  return copysign(select(a < W(kInfinity), narrow(r), x), x);
}

template <LaneValue V>
V acosh(V x) {
  using W = Wide<V>;
  const W t = widen(x) - W(1);
  const W r = log1p_wide(t + sqrt(t * (t + W(2))));
  return narrow(select(t < W(0), W(kNaN), r));
}

template <LaneValue V>
V atanh(V x) {
  using W = Wide<V>;
  const W a = widen(abs(x));
  return copysign(narrow(W(0.5) * log1p_wide((a + a) / (W(1) - a))), x);
}

/// The special cases are those of C99 Annex F.9.4.4.
template <LaneValue V>
V pow(V x, V y) {
  using W = Wide<V>;
  const W exponent = widen(y);
  const V a = abs(x);
  const V power = narrow(exp2_wide(exponent * log_wide(widen(a), 1, kLog2E)).value());
  const auto whole = round_even(exponent) == exponent;
  const W half = exponent * W(0.5);
  const auto odd = whole && !(round_even(half) == half);
  const auto no_number = x < V(0) && a < V(kInfinity) && !whole;
  const V of_negative = select(no_number, V(kNaN), power);
  const V signed_power = select(odd, copysign(power, x), of_negative);
  const auto one = x == V(1) || y == V(0) || (x == V(-1) && abs(y) == V(kInfinity));
  return select(one, V(1), signed_power);
}

}  // namespace anynpu::tile::math
