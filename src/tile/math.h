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
/// Largest error over all of f32, in units of the last place (the disabled test of
/// test/unit/tile/math_test.cpp):
///
/// | function | ulp | at x |
/// |---|---|---|
/// | exp | 1.013 | 0x1.da72c4p+5 |
/// | exp2 | 0.878 | -0x1.f9fc6ap+6 |
/// | log | 0.937 | 0x1.55640ap+0 |
/// | sin | 1.151 | 0x1.bd4e4cp+8 |
/// | tanh | 1.052 | 0x1.c2aec8p-1 |
/// | erf | 1.223 | 0x1.0786eap+0 |
/// | erfc | 1.906 | 0x1.a89106p+2 |
/// | ndtr | 1.946 | -0x1.285bdp+2 |
///
/// cos is within 1.12 on every 101st number. The others are computed in f64 and rounded once, within 0.501 on
/// every 1009th number, or in the case of pow and atan2 on 30 million random pairs.
