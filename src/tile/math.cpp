#include "tile/math.h"

#include "tile/math_f64.h"

// float is a lane value, and every function compiles for it.
namespace anynpu::tile::math {

static_assert(LaneValue<float>);

template float exp(float);
template float exp2(float);
template float expm1(float);
template float log(float);
template float log2(float);
template float log10(float);
template float log1p(float);
template float sin(float);
template float cos(float);
template float tan(float);
template float asin(float);
template float acos(float);
template float atan(float);
template float sinh(float);
template float cosh(float);
template float tanh(float);
template float asinh(float);
template float acosh(float);
template float atanh(float);
template float erf(float);
template float erfc(float);
template float ndtr(float);
template float pow(float, float);
template float atan2(float, float);

}  // namespace anynpu::tile::math

namespace anynpu::tile::f64 {

/// A rounded argument u + d of erfc would count in the tail: erfc(u + d) is erfc(u) (1 - 2 u d) for large u.
double ndtr(double x) {
  constexpr double kInvSqrt2 = 0x1.6a09e667f3bcdp-1, kInvSqrt2Low = -0x1.bdd3413b26456p-55;
  const double u = -x * kInvSqrt2, d = std::fma(-x, kInvSqrt2, -u) - x * kInvSqrt2Low;
  return 0.5 * erfc(u) * (u > 0 && u < 30 ? 1 - 2 * u * d : 1);
}

}  // namespace anynpu::tile::f64
