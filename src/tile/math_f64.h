#pragma once

#include <cmath>

#include "tile/opcode.h"

/// The transcendental functions of f64: libm's, and what it does not have.
namespace anynpu::tile::f64 {

#define ANYNPU_FUNCTION(opcode, name) using std::name;
ANYNPU_TILE_LIBM_FUNCTIONS(ANYNPU_FUNCTION)
ANYNPU_TILE_BINARY_FUNCTIONS(ANYNPU_FUNCTION)
#undef ANYNPU_FUNCTION

/// The normal distribution's function: erfc(-x / sqrt(2)) / 2, which keeps the tail, where 1 + erf cancels.
double ndtr(double x);

}  // namespace anynpu::tile::f64
