#include "ops/operand.h"

namespace anynpu::ops {

DType compute_type(DType common) {
  switch (common) {
    case DType::kF16:
    case DType::kBF16:
      return DType::kF32;
    case DType::kBool:
      return DType::kU8;
    default:
      return common;
  }
}

Lies lies(DType dtype, int64_t stride) {
  if (stride == 0) return Lies::kStays;
  return stride == static_cast<int64_t>(tile::size_of(dtype)) ? Lies::kAdjacent : Lies::kApart;
}

tile::Expr converted(const tile::Expr& value, DType dtype) {
  return value.dtype() == dtype ? value : value.builder().cast(value, dtype);
}

tile::Expr shaped(const tile::Expr& value, const tile::Type& type) {
  const tile::Expr made = converted(value, type.dtype);
  return made.type() == type ? made : made.builder().broadcast(made, type.rows, type.cols);
}

tile::BufferArgument buffer_argument(const Operand& operand) {
  tile::BufferArgument argument = {operand.data, {}};
  const auto bytes = static_cast<int64_t>(tile::size_of(operand.dtype));
  for (auto stride = operand.strides.rbegin(); stride != operand.strides.rend(); ++stride)
    argument.strides.push_back(*stride / bytes);
  return argument;
}

}  // namespace anynpu::ops
