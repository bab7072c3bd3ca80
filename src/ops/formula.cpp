#include "ops/formula.h"

namespace anynpu::ops {

tile::Expr multiply_add(const tile::Expr& a, const tile::Expr& b, const tile::Expr& c) {
  return tile::kFloats.contains(a.dtype()) ? tile::fma(a, b, c) : a * b + c;
}

}  // namespace anynpu::ops
