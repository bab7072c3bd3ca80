#include "abi/aclnn/shapes.h"

#include "abi/aclnn/status.h"

namespace anynpu::aclnn {

std::ostream& operator<<(std::ostream& out, Listed list) {
  out << '[';
  for (size_t i = 0; i < list.values.size(); ++i) out << (i == 0 ? "" : ", ") << list.values[i];
  return out << ']';
}

std::ostream& operator<<(std::ostream& out, NamesOf names) {
  const char* separator = "";
  for (int i = 0; i < tile::kDTypes; ++i) {
    const auto dtype = static_cast<tile::DType>(i);
    if (!names.dtypes.contains(dtype)) continue;
    out << separator << name_of(dtype);
    separator = ", ";
  }
  return out;
}

std::vector<int64_t> broadcast_of(std::span<const Bound* const> operands) {
  std::vector<int64_t> sizes;
  for (const Bound* operand : operands) {
    if (!operand->is_tensor) continue;
    const auto both = ops::broadcast(sizes, operand->view().sizes);
    check(both.has_value(), operand->name, " has shape ", Listed{operand->view().sizes},
          ", which is not broadcast with that of the operands before it, ", Listed{sizes});
    sizes = *both;
  }
  return sizes;
}

void check_shape(const Bound& tensor, std::span<const int64_t> sizes) {
  const auto& given = tensor.view().sizes;
  check(std::equal(given.begin(), given.end(), sizes.begin(), sizes.end()), tensor.name, " has shape ",
        Listed{given}, "; ", Listed{sizes}, " is accepted");
}

size_t wrapped_dim(const char* name, int64_t dim, size_t dims) {
  const auto count = static_cast<int64_t>(std::max<size_t>(dims, 1));
  check(dim >= -count && dim < count, name, " is ", dim, "; ", -count, " to ", count - 1, " are accepted");
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

void check_type(const Bound& tensor, tile::DTypes accepted) {
  check(accepted.contains(tensor.view().dtype), tensor.name, " has type ", name_of(tensor.view().dtype),
        "; accepted are ", NamesOf{accepted});
}

}  // namespace anynpu::aclnn
