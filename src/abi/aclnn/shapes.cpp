#include "abi/aclnn/shapes.h"

#include "abi/aclnn/status.h"
#include "ops/elementwise.h"

namespace anynpu::aclnn {

std::string text_of(std::span<const int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += concat(text.empty() ? "" : ", ", size);
  return concat('[', text, ']');
}

std::string names_of(tile::DTypes dtypes) {
  std::string text;
  for (int i = 0; i < tile::kDTypes; ++i)
    if (const auto dtype = static_cast<tile::DType>(i); dtypes.contains(dtype))
      text += concat(text.empty() ? "" : ", ", name_of(dtype));
  return text;
}

std::vector<int64_t> broadcast_of(std::span<const Bound* const> operands) {
  std::vector<int64_t> sizes;
  for (const Bound* operand : operands) {
    if (!operand->is_tensor) continue;
    const auto both = ops::broadcast(sizes, operand->view().sizes);
    check(both.has_value(), operand->name, " has shape ", text_of(operand->view().sizes),
          ", which is not broadcast with that of the operands before it, ", text_of(sizes));
    sizes = *both;
  }
  return sizes;
}

void check_shape(const Bound& tensor, std::span<const int64_t> sizes) {
  const auto& given = tensor.view().sizes;
  check(std::equal(given.begin(), given.end(), sizes.begin(), sizes.end()), tensor.name, " has shape ",
        text_of(given), "; ", text_of(sizes), " is accepted");
}

void check_type(const Bound& tensor, tile::DTypes accepted) {
  check(accepted.contains(tensor.view().dtype), tensor.name, " has type ", name_of(tensor.view().dtype),
        "; accepted are ", names_of(accepted));
}

ops::Launch copied(const ops::View& to, const ops::View& from) {
  static const ops::Elementwise& op = *ops::find_elementwise("Copy");
  const std::vector<ops::View> views = {to, from};
  const ops::Iteration iteration(views);
  return prepare(ops::ElementwiseCall{op, 0, from.dtype, iteration.sizes(), iteration.operands(), {}});
}

}  // namespace anynpu::aclnn
