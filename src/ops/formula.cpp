#include "ops/formula.h"

namespace anynpu::ops {

tile::Expr multiply_add(const tile::Expr& a, const tile::Expr& b, const tile::Expr& c) {
  return tile::kFloats.contains(a.dtype()) ? tile::fma(a, b, c) : a * b + c;
}

TwoParts<tile::Expr> product(const tile::Expr& x, double constant) {
  const double nearest = x.dtype() == tile::DType::kF32 ? double{static_cast<float>(constant)} : constant;
  const tile::Expr high = x * nearest;
  const tile::Expr low = tile::fma(x, x.like(nearest), -high);
  return {high, nearest == constant ? low : low + x * (constant - nearest)};
}

}  // namespace anynpu::ops
