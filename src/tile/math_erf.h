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

/// In f64, where e^(-x^2) needs no parts: for a = |x|, e^(-a^2) t p(t - 1/4), t = 1 / (a + 2).
/// Polynomial: e^(a^2) erfc(a) / t, 0 <= a <= 10.25, relative 2^-28.1, Remez with f64 coefficients (Sollya).
template <LaneValue V>
V erfc(V x) {
  using W = Wide<V>;
  const W a = widen(at_most(abs(x), 10.25)), t = W(1) / (a + W(2));
  const W p = polynomial(t - W(0.25), 0x1.058671c458d22p0, 0x1.5fd386d8c33a4p1, 0x1.1e2dd88cbc4fp2,
                         0x1.2a88075187277p1, -0x1.60592e382d685p2, -0x1.a86c069e59d1cp2, 0x1.9163d2699a953p3,
                         0x1.b4bcdd674b988p3, -0x1.36b11852ab42p5, -0x1.92982d9ce476bp3, 0x1.25c772209577bp6);
  const W r = exp_wide(-(a * a)).value() * (t * p);
  return narrow(select(x < V(0), W(2) - r, r));
}

}  // namespace anynpu::tile::math
