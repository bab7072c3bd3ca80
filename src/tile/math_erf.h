#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "tile/math_exp.h"

namespace anynpu::tile::math {

/// Polynomials: erf(x) = x + x p(x^2), |x| < 1, relative 2^-29.6; erfc(x) in x - 2.5, 1 <= x <= 4, absolute
/// 2^-26.7; Remez with f32 coefficients (Sollya).
template <LaneValue V>
V erf(V x) {
  const V a = abs(x);
  const V p = polynomial(a * a, 0x1.06eba8p-3, -0x1.81273ep-2, 0x1.ce2cfap-4, -0x1.b7f93p-6, 0x1.540688p-8,
                         -0x1.a3fbecp-11, 0x1.49755ep-14);
  const V near = fma(a, p, a);
  const V far = V(1) - polynomial(at_most(a, 4) - V(2.5), 0x1.aab886p-12, -0x1.1d7fe4p-9, 0x1.64e34ap-8,
                                  -0x1.11ab46p-7, 0x1.1a8c56p-7, -0x1.90611p-8, 0x1.6ea766p-9,
                                  -0x1.25a2eap-11, -0x1.0f08dap-12, 0x1.1b88f8p-12, -0x1.54d1fp-14,
                                  -0x1.28a96p-16, 0x1.088c96p-16, -0x1.1165a4p-21, -0x1.e121bcp-21);
  return copysign(select(a < V(1), near, far), x);
}

/// The tail of a bell curve, e^-(square + low) t p(t - m) with t = 1 / (a + k), for 0 <= a and square <
/// 105.5.
struct BellTail {
  double k, m;
  double slope[2];  ///< slope[0] + slope[1] t is nearly t f'(t) / f(t), where f(t) = t p(t - m)
  std::array<double, 11> p;
};

/// NaN where `a` is. All roundings that count are made up for: those of a + k and of t (`excess`), of p and t
/// p
/// (`q_low`), and of the exponential's argument (`rest`). The tail is computed 2^64 times, where all its
/// numbers are normal ones.
template <class V>
V bell_tail(const BellTail& tail, V a, V square, V low) {
  const V k(tail.k), sum = a + k, t = V(1) / sum, u = t - V(tail.m);
  const V excess = fma(a - (sum - k), t, fma(sum, t, V(-1)));  // (a + k) t - 1
  const auto up = [&](size_t i) { return V(0x1p64 * tail.p[i]); };
  const auto curved = [&]<size_t... i>(std::index_sequence<i...>) {
    return polynomial(u, std::array{up(i + 1)...});
  }(std::make_index_sequence<std::tuple_size_v<decltype(BellTail::p)> - 1>());
  const V p0 = up(0), p = fma(curved, u, p0), q = p * t;
  const V q_low = fma(fma(curved, u, p0 - p), t, fma(p, t, -q));
  const auto [n, bits] = round_product(square, -kLog2E);
  const V slope = fma(t, V(tail.slope[1]), V(tail.slope[0]));
  const V high = fma(n, V(-kLn2High), -square), rest = fma(-excess, slope, fma(n, V(-kLn2Low), -low));
  const V r = high + rest;
  const V y = q + fma(q, high, fma(q, fma(r * r, exp_curve(r), rest), q_low));
  return fma(as_float(as_int(y) + (bits << fraction_bits<V>())), V(0x1p-64), a * V(0));
}

/// Polynomial: e^(a^2) erfc(a) / t, 0 <= a <= 10.25, relative 2^-25.1, f32 coefficients (Sollya).
template <LaneValue V>
V erfc(V x) {
  constexpr BellTail kTail = {
      1.5,
      0.25,
      {1.1, 1},
      {0x1.afbb4p-1, 0x1.62a4e2p0, 0x1.ecad74p-1, -0x1.d2d342p-1, -0x1.943894p0, 0x1.dc66cp0, 0x1.3cecacp1,
       -0x1.71fc8cp2, -0x1.c977ccp-3, 0x1.405e2ap3, -0x1.0103c8p3}};
  const V a = at_most(abs(x), 10.25), square = a * a;
  const V y = bell_tail(kTail, a, square, fma(a, a, -square));
  return select(x < V(0), V(2) - y, y);
}

/// The normal distribution's function: how probable a value less than x is.
/// Polynomial: e^(a^2 / 2) ndtr(-a) / t, 0 <= a <= 14.5, relative 2^-24.7, f32 coefficients (Sollya).
template <LaneValue V>
V ndtr(V x) {
  constexpr BellTail kTail = {
      3,
      0.125,
      {0.93, 4.4},
      {0x1.3b0fbcp-1, 0x1.360a5ep1, 0x1.b9d956p2, 0x1.6fb58ep3, -0x1.d4bfcap0, -0x1.b284fep5, -0x1.70f99ep5,
       0x1.1d00c8p8, 0x1.29f70ap9, -0x1.bf422ep11, 0x1.154548p12}};
  const V a = at_most(abs(x), 14.5), half = V(0.5) * a, square = half * a;
  const V y = bell_tail(kTail, a, square, fma(half, a, -square));
  return select(V(0) < x, V(1) - y, y);
}

}  // namespace anynpu::tile::math
