#include "ops/operand.h"

#include <limits>

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

double greatest_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0x1.ffcp15;
    case DType::kBF16:
      return 0x1.fep127;
    case DType::kF32:
      return std::numeric_limits<float>::max();
    default:
      return std::numeric_limits<double>::max();
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

void add_buffer(jit::PackedArguments& arguments, const Operand& operand, std::span<const int64_t> strides) {
  const auto bytes = static_cast<int64_t>(tile::size_of(operand.dtype));
  arguments.buffer(operand.data, {});
  for (auto stride = strides.rbegin(); stride != strides.rend(); ++stride) arguments.add(*stride / bytes);
}

}  // namespace anynpu::ops
