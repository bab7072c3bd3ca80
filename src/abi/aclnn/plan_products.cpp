#include <algorithm>
#include <string_view>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/cube/matmul.h"
#include "ops/promotion.h"

namespace anynpu::aclnn {
namespace {

using ops::Matmul;
using tile::DType;

/// What a function takes: how many dimensions its operands have, 0 for any, and whether it adds up batches.
struct Form {
  std::string_view function;
  size_t left, right;
  bool sums_batches = false;
};
constexpr Form kForms[] = {
    {"aclnnMatmul", 0, 0},  {"aclnnMm", 2, 2},           {"aclnnBatchMatMul", 3, 3},  {"aclnnMv", 2, 1},
    {"aclnnDot", 1, 1},     {"aclnnAddmm", 2, 2},        {"aclnnInplaceAddmm", 2, 2}, {"aclnnAddmv", 2, 1},
    {"aclnnBaddbmm", 3, 3}, {"aclnnAddbmm", 3, 3, true},
};

/// What the arguments of a call are to its operator.
struct Roles {
  const Bound *added = nullptr, *left = nullptr, *right = nullptr, *result = nullptr;
  const Bound *beta = nullptr, *alpha = nullptr, *math_type = nullptr;

  explicit Roles(const Call& call) {
    std::vector<const Bound*> tensors;
    for (const Bound& argument : call.arguments) {
      const std::string_view name = argument.name;
      if (argument.is_tensor) tensors.push_back(&argument);
      if (argument.written) result = &argument;
      if (name == "beta") beta = &argument;
      if (name == "alpha") alpha = &argument;
      if (name == "cubeMathType") math_type = &argument;
    }
    const size_t first = beta != nullptr ? 1 : 0;
    if (beta != nullptr) added = tensors[0];
    left = tensors[first];
    right = tensors[first + 1];
  }
};

void check_math_type(const Bound& argument, DType dtype) {
  enum : int64_t { kKeepDtype, kAllowDownPrecision, kUseF16, kUseHf32 };
  const int64_t type = std::get<int64_t>(argument.value);
  check(type >= kKeepDtype && type <= kUseHf32, argument.name, " is ", type, "; 0 to 3 are accepted");
  const bool computed = type == kKeepDtype || type == kAllowDownPrecision ||
                        (type == kUseF16 ? dtype == DType::kF16 : dtype != DType::kF32);
  require(computed, ErrorCode::kUnsupported, "not supported: ", argument.name, " is ", type,
          type == kUseF16 ? " (USE_FP16)" : " (USE_HF32)", " for operands of ", name_of(dtype),
          "; products are of the operands' own type, which 0 and 1 allow");
}

void check_dims(const Bound& operand, size_t dims) {
  const size_t given = operand.view().sizes.size();
  check(dims == 0 ? given != 0 : given == dims, operand.name, " has shape ", Listed{operand.view().sizes},
        "; ",
        dims == 0   ? "one dimension or more is"
        : dims == 1 ? "1 dimension is"
                    : concat(dims, " dimensions are"),
        " accepted");
}

/// The sizes of the product, checked.
std::vector<int64_t> product_sizes(const Form& form, const Bound& left, const Bound& right) {
  check_dims(left, form.left);
  check_dims(right, form.right);
  const auto &a = left.view().sizes, &b = right.view().sizes;
  const int64_t depth = b[b.size() == 1 ? 0 : b.size() - 2];
  check(a.back() == depth, right.name, " has shape ", Listed{b}, ", but ", left.name, " has shape ",
        Listed{a}, "; the last size of ", left.name, ", ", a.back(), ", must be that of ", right.name,
        " along ", b.size() == 1 ? "its dimension" : "the last dimension but one", ", ", depth);
  const auto sizes = ops::matmul_sizes(a, b);
  check(sizes.has_value(), right.name, " has shape ", Listed{b},
        ", whose batches are not broadcast with those of ", left.name, " of shape ", Listed{a});
  if (!form.sums_batches) return *sizes;
  check(a[0] == b[0], right.name, " has ", b[0], " matrices; as many as ", left.name, " has, ", a[0],
        ", are accepted");
  return {sizes->begin() + 1, sizes->end()};
}

double factor(const Bound& argument, DType dtype) {
  const auto& value = std::get<Number>(argument.value).value;
  const auto* const integer = std::get_if<int64_t>(&value);
  if (!tile::kBits.contains(dtype))
    return integer != nullptr ? static_cast<double>(*integer) : std::get<double>(value);
  check(integer != nullptr, argument.name, " is a float; the operands have type ", name_of(dtype),
        ", and integers are accepted");
  check(ops::holds(dtype, *integer), argument.name, " is ", *integer, ", which ", name_of(dtype),
        " does not have");
  return static_cast<double>(*integer);
}

/// Operands are read at other indices than those that are written.
void check_memory(const Bound& result, const Bound& operand) {
  check(!result.view().overlaps(operand.view()), result.name, " is written, and shares memory with ",
        operand.name, ", of which a product takes other elements");
}

}  // namespace

Launches plan_product(const Call& call, Workspace& workspace) {
  const Form& form = *std::ranges::find(kForms, std::string_view(call.op.function), &Form::function);
  const Roles roles(call);
  const Bound &left = *roles.left, &right = *roles.right, &result = *roles.result;
  const DType dtype = left.view().dtype;
  check_type(left, ops::kProductTypes);
  for (const Bound* tensor : {&right, &result, roles.added})
    if (tensor != nullptr) check_type(*tensor, tile::DTypes(dtype));
  if (roles.math_type != nullptr) check_math_type(*roles.math_type, dtype);
  const auto sizes = product_sizes(form, left, right);
  check_shape(result, sizes);
  check_memory(result, left);
  check_memory(result, right);
  Matmul product = {left.view(), right.view(), result.view()};
  if (roles.added != nullptr) {
    const auto& added = roles.added->view().sizes;
    check(ops::broadcast(added, sizes) == sizes, roles.added->name, " has shape ", Listed{added},
          ", which is not broadcast to that of the product, ", Listed{sizes});
    product.added = roles.added->view();
    product.beta = factor(*roles.beta, dtype);
    product.alpha = factor(*roles.alpha, dtype);
  }
  return form.sums_batches ? prepare_sum_of_batches(product, workspace.taker())
                           : prepare(product, workspace.taker());
}

}  // namespace anynpu::aclnn
