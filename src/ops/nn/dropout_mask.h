#pragma once

#include <cstdint>

#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::ops {

/// Masks of dropout, of a bit for each element: element i has bit i % 8 of byte i / 8, and is kept where it
/// is
/// 1. Bits come from Philox: byte b has the words of counters 2 b and 2 b + 1, one word a bit.

/// Fills `mask`, adjacent u8: each bit is 0 with probability `p`, of 0 to 1.
Launch prepare_dropout_mask(const View& mask, double p, uint64_t seed, uint64_t offset);

/// result = x / (1 - p) where the mask's bit is 1, else 0; 0 everywhere with p 1. `x` and `result` are
/// adjacent floats, as many, and one at least.
Launch prepare_masked_dropout(const View& result, const View& x, const View& mask, double p);

}  // namespace anynpu::ops
