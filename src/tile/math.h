#pragma once

#include "tile/math_erf.h"
#include "tile/math_exp.h"
#include "tile/math_lane.h"
#include "tile/math_log.h"
#include "tile/math_trig.h"

/// The transcendental functions of f32, each written once over a lane value V (math_lane.h): with V = float
/// they define the results, with lanes of a vector unit they compute the same bits. They read no memory and
/// branch on no value, except that if_any may skip the reduction of huge angles.
///
/// Infinities, NaNs (whose payload is open), signed zeros, subnormals and the special cases of pow and atan2
/// are as in C99 Annex F; odd functions are odd and even ones even to the bit. Everything is compiled with
/// -ffp-contract=off (anynpu_flags): a product is fused with a sum where the code says fma and nowhere else.
///
/// The largest error of each is held by test/unit/tile/math_test.cpp. Functions within 0.51 units of the last
/// place are computed in f64 and rounded once.
