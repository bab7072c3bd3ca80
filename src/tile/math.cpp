#include "tile/math.h"

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
template float pow(float, float);
template float atan2(float, float);

}  // namespace anynpu::tile::math
