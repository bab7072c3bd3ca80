#pragma once

#include "ops/formula.h"

namespace anynpu::ops {

using std::abs, std::log, std::tanh;

/// From a at weight 0 to b at weight 1, from the nearer end, so that both ends are exact.
template <class V>
V lerp(V a, V b, V weight) {
  const V between = b - a;
  return select(abs(weight) < 0.5, a + weight * between, b - (1.0 - weight) * between);
}

}  // namespace anynpu::ops
