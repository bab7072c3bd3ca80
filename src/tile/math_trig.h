#pragma once

#include "tile/math_lane.h"

namespace anynpu::tile::math {

inline constexpr double kPi = 0x1.921fb54442d18p+1;
inline constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

/// x = n pi/2 + rest + low, |rest| <= pi/4 + 2^-6. The low bits of n are those of a whole number.
template <class T>
struct Quadrant {
  T rest;
  Int<T> n;
  T low;
};

inline constexpr double kQuadrantLimit = 0x1p17;

/// For |x| up to kQuadrantLimit, by pi/2 in three parts: x - n part1 is exact.
template <class V>
Quadrant<V> quadrant(V x) {
  const auto [n, bits] = round_product(x, kTwoOverPi);
  const V exact = fma(n, V(-0x1.921fb6p+0), x);
  const V part2 = n * V(0x1.777a5cp-25), part2_lost = fma(n, V(0x1.777a5cp-25), -part2);
  const V rest = exact + part2;
  return {rest, bits, ((exact - rest) + part2) + fma(n, V(0x1.ee59dap-50), part2_lost)};
}

/// The same in f64 for |x| up to 2^25 that f32 holds.
template <class W>
Quadrant<W> quadrant_wide(W x) {
  const auto [n, bits] = round_product(x, kTwoOverPi);
  return {fma(n, W(-0x1.1a62633145c07p-54), fma(n, W(-kPi / 2), x)), bits, W(0)};
}

/// The same in f64 for any x that f32 holds. The product of x and each 28-bit piece of 2/pi is exact, and so
/// is its rest by 4; what adding the rests rounds away is added in the end. Payne & Hanek 1983, in floating
/// point.
template <class W>
Quadrant<W> quadrant_any(W x) {
  constexpr double kPieces[] = {0xa2f9836p-28,  0xe4e4415p-56,  0x29fc275p-84, 0x7d1f534p-112,
                                0xddc0db6p-140, 0x295993cp-168, 0x439041fp-196};
  W sum(0), lost(0);
  for (double piece : kPieces) {
    const W product = x * W(piece);
    const W rest = fma(round_even(product * W(0.25)), W(-4), product);
    const W next = sum + rest, added = next - sum;
    lost = lost + ((sum - (next - added)) + (rest - added));
    sum = next;
  }
  const auto [n, bits] = round_product(sum, 1);
  return {((sum - n) + lost) * W(kPi / 2), bits, W(0)};
}

/// Polynomial: sin(r) = r + r^3 p(r^2), |r| <= pi/4 + 2^-6, relative 2^-27.7, Remez with f32 coefficients
/// (Sollya).
template <class V>
V sin_near_zero(V r, V low) {
  const V z = r * r;
  return r + fma(r * z, polynomial(z, -0x1.555544p-3, 0x1.1106aap-7, -0x1.990d7ep-13), low);
}

/// Polynomial: cos(r) = 1 - r^2 / 2 + r^4 p(r^2), the same range, relative 2^-32.6, made likewise.
template <class V>
V cos_near_zero(V r, V low) {
  const V z = r * r;
  return V(1) + fma(z, polynomial(z, -0.5, 0x1.555548p-5, -0x1.6c0b06p-10, 0x1.999972p-16), -(r * low));
}

/// Polynomial: sin(r) / r in r^2, |r| <= pi/4 + 2^-6, relative 2^-47.2, Remez with f64 coefficients (Sollya).
template <class W>
W sin_near_zero_wide(W r) {
  return r * polynomial(r * r, 1, -0x1.5555555551707p-3, 0x1.1111110bc002bp-7, -0x1.a019f82acd669p-13,
                        0x1.71d6de298dfd7p-19, -0x1.a92e264bd4365p-26);
}

/// Polynomial: cos(r) in r^2, the same range, relative 2^-53.4, made likewise.
template <class W>
W cos_near_zero_wide(W r) {
  return polynomial(r * r, 1, -0x1.fffffffffff7ap-2, 0x1.555555554da88p-5, -0x1.6c16c162a7c1fp-10,
                    0x1.a019f6e8aa52dp-16, -0x1.27decd713b908p-22, 0x1.1b68a9a4605dap-29);
}

/// The sine at n quadrants from the place where sine and cosine are given.
template <class T>
T turn(T sine, T cosine, Int<T> n) {
  const T r = select((n & Int<T>(1)) == Int<T>(0), sine, cosine);
  const Int<T> negative = (n << (fraction_bits<T>() == 23 ? 30 : 62)) & Int<T>(sign_bit<T>());
  return as_float(as_int(r) ^ negative);
}

/// sin(x + ahead pi/2).
template <class V>
V sin_ahead(V x, uint64_t ahead) {
  const auto near = quadrant(x);
  const V r =
      turn(sin_near_zero(near.rest, near.low), cos_near_zero(near.rest, near.low), near.n + Int<V>(ahead));
  const auto from_far = [&] {
    const auto far = quadrant_any(widen(x));
    return narrow(
        turn(sin_near_zero_wide(far.rest), cos_near_zero_wide(far.rest), far.n + Int<Wide<V>>(ahead)));
  };
  return if_any(V(kQuadrantLimit) < abs(x), from_far, r);
}

template <LaneValue V>
V sin(V x) {
  return select(x == V(0), x, sin_ahead(x, 0));
}

template <LaneValue V>
V cos(V x) {
  return sin_ahead(x, 1);
}

template <class W>
W tan_in_quadrant(const Quadrant<W>& at) {
  const W sine = sin_near_zero_wide(at.rest), cosine = cos_near_zero_wide(at.rest);
  const auto even = (at.n & Int<W>(1)) == Int<W>(0);
  return select(even, sine, -cosine) / select(even, cosine, sine);
}

template <LaneValue V>
V tan(V x) {
  const Wide<V> wide = widen(x);
  const auto from_far = [&] { return narrow(tan_in_quadrant(quadrant_any(wide))); };
  const V near = narrow(tan_in_quadrant(quadrant_wide(wide)));
  return select(x == V(0), x, if_any(V(0x1p25) < abs(x), from_far, near));
}

/// asin(x) in f64 for |x| <= 1/2.
/// Polynomial: asin(x) / x in x^2, relative 2^-39.9, Remez with f64 coefficients (Sollya).
template <class W>
W asin_near_zero(W x) {
  return x * polynomial(x * x, 1, 0x1.55555547de741p-3, 0x1.3333408753c86p-4, 0x1.6db25ce71bb38p-5,
                        0x1.f2819ea68fb31p-6, 0x1.6643de02b8ccbp-6, 0x1.522e99e980314p-6,
                        0x1.0546586645e55p-9, 0x1.0d7ce49532ae7p-5);
}

/// acos(a) in f64 for 0 <= a; NaN above 1. From 1/2 on by acos(a) = 2 asin(sqrt((1 - a) / 2)).
template <class W>
W acos_of_positive(W a) {
  const auto near = a < W(0.5);
  const W r = asin_near_zero(select(near, a, sqrt((W(1) - a) * W(0.5))));
  return select(near, W(kPi / 2) - r, r + r);
}

template <LaneValue V>
V acos(V x) {
  const Wide<V> r = acos_of_positive(widen(abs(x)));
  return narrow(select(x < V(0), Wide<V>(kPi) - r, r));
}

template <LaneValue V>
V asin(V x) {
  const Wide<V> a = widen(abs(x));
  const auto near = a < Wide<V>(0.5);
  const Wide<V> r = asin_near_zero(select(near, a, sqrt((Wide<V>(1) - a) * Wide<V>(0.5))));
  return copysign(narrow(select(near, r, Wide<V>(kPi / 2) - (r + r))), x);
}

/// atan(x) in f64 for 0 <= x <= 1.
/// Polynomial: atan(x) / x in x^2, relative 2^-36.5, Remez with f64 coefficients (Sollya).
template <class W>
W atan_near_zero(W x) {
  return x * polynomial(x * x, 1, -0x1.5555552f27b1p-2, 0x1.9999846c419c8p-3, -0x1.2490392157a28p-3,
                        0x1.c6e85ac3c571p-4, -0x1.72d62fe6c3f2p-4, 0x1.33a16b4f258a1p-4,
                        -0x1.f02f949ebc721p-5, 0x1.69ea4b1b3eb92p-5, -0x1.b2f572e8aca02p-6,
                        0x1.81f6670dee7cfp-7, -0x1.b4025d485949ap-9, 0x1.ce19a1b30e7b1p-12);
}

/// The angle of (x, y), from -pi to pi; the special cases are those of C99 Annex F.9.1.4.
template <LaneValue V>
V atan2(V y, V x) {
  using W = Wide<V>;
  const V a = abs(y), b = abs(x);
  const auto steep = b < a;
  const W low = widen(select(steep, b, a)), high = widen(select(steep, a, b));
  const W of_equal = select(high == W(0), W(0), W(1));
  const W ratio = select(low == high, of_equal, low / high);
  W angle = atan_near_zero(ratio);
  angle = select(steep, W(kPi / 2) - angle, angle);
  const auto leftward = copysign(V(1), x) < V(0);
  return copysign(narrow(select(leftward, W(kPi) - angle, angle)), y);
}

template <LaneValue V>
V atan(V x) {
  return atan2(x, V(1));
}

}  // namespace anynpu::tile::math
