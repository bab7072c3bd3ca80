#include "ops/copy.h"

#include "ops/elementwise.h"

namespace anynpu::ops {

DType bits_of(size_t bytes) {
  return bytes == 1 ? DType::kI8 : bytes == 2 ? DType::kI16 : bytes == 4 ? DType::kI32 : DType::kI64;
}

Launch prepare_copy(std::span<const int64_t> sizes, const Operand& to, const Operand& from) {
  static const Elementwise& op = elementwise_op("Copy");
  Operand operands[] = {to, from};
  DType common = compute_type(from.dtype);
  if (from.dtype == DType::kF64 && to.dtype == DType::kU8) common = DType::kI64;  // as in PyTorch: low bits
  if (from.dtype == to.dtype && from.data != nullptr) {
    common = bits_of(tile::size_of(to.dtype));
    for (Operand& operand : operands) operand.dtype = common;
  }
  return prepare(ElementwiseCall{op, 0, common, sizes, operands, {}});
}

Launch prepare_copy(const View& to, const View& from) {
  const View views[] = {to, from};
  const Iteration iteration(views);
  return prepare_copy(iteration.sizes(), iteration.operands()[0], iteration.operands()[1]);
}

View merged_or_copied(const View& view, size_t first, size_t last, const TakeMemory& take,
                      std::vector<Launch>& launches) {
  if (const auto merged = view.merged(first, last)) return *merged;
  const View copy = temporary(take, view.dtype, view.sizes);
  launches.push_back(prepare_copy(copy, view));
  return *copy.merged(first, last);
}

}  // namespace anynpu::ops
