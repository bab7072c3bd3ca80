#pragma once

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

/// For a = |x|: e^(-a^2) q, q = t p(t - m), t = 1 / (a + k). All roundings that count are made up for: those
/// of a + k and of t (`excess`), of q (`q_low`), of a^2, and of the argument's reduction (`rest`).
/// Polynomial: e^(a^2) erfc(a) / t, 0 <= a <= 10.25, relative 2^-26, Remez with f32 coefficients but for the
/// first, which has two (Sollya); the last is 6e-5 more, so that erfc(0) is 1.
template <LaneValue V>
V erfc(V x) {
  const V a = at_most(abs(x), 10.25), k(1.5), m(0.25);
  const V sum = a + k, t = V(1) / sum;
  const V excess = fma(a - (sum - k), t, fma(sum, t, V(-1)));  // (a + k) t - 1
  const V u = fma(-excess, t, t - m), p0(0x1.afbb4p-1);
  const V slope =
      polynomial(u, -0x1.89fd42p-27, 0x1.62a4ep0, 0x1.ecaddap-1, -0x1.d2d0d6p-1, -0x1.9449a4p0, 0x1.dc3f8cp0,
                 0x1.3e2ac8p1, -0x1.726d88p2, -0x1.64eb9ep-2, 0x1.4c51b4p3, -0x1.0b20f4p3);
  const V p = p0 + slope, q = p * t;
  const V q_low = fma(p0 - p + slope, t, fma(p, t, -q) - excess * q);
  const V square = a * a;
  const auto [n, bits] = round_product(square, -kLog2E);
  const V high = fma(n, V(-kLn2High), -square), rest = fma(n, V(-kLn2Low), -fma(a, a, -square));
  const V r = high + rest;
  const V curve = fma(r * r, exp_curve(r), rest);
  const V y = scale(q + fma(q, high, fma(q, curve, fma(q_low, high, q_low))), bits);
  return select(x < V(0), V(2) - y, y);
}

}  // namespace anynpu::tile::math
