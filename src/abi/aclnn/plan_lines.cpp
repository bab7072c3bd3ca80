#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/lines.h"
#include "ops/nn/layer_norm.h"
#include "ops/promotion.h"
#include "ops/reduce/reduction.h"

namespace anynpu::aclnn {
namespace {

using ops::LineOp;
using ops::View;
using tile::DType;

/// The argument that holds a value of that type, or null.
template <class T>
const Bound* argument_of(const Call& call) {
  for (const Bound& argument : call.arguments)
    if (std::holds_alternative<T>(argument.value)) return &argument;
  return nullptr;
}

/// The dimension that is an argument: a number, or a scalar.
size_t dimension_of(const Call& call, size_t dims) {
  if (const Bound* number = argument_of<int64_t>(call))
    return wrapped_dim(number->name, std::get<int64_t>(number->value), dims);
  const Bound& scalar = *argument_of<Number>(call);
  const auto* const dim = std::get_if<int64_t>(&std::get<Number>(scalar.value).value);
  check(dim != nullptr, scalar.name, " is a float; an integer is accepted");
  return wrapped_dim(scalar.name, *dim, dims);
}

/// The dimensions that are arguments. Without any, all.
ops::Dims dimensions_of(const Call& call, size_t count) {
  ops::Dims dims;
  const Bound* const list = argument_of<std::vector<int64_t>>(call);
  if (list == nullptr && argument_of<int64_t>(call) != nullptr) {
    dims.set(dimension_of(call, count));
  } else if (list != nullptr) {
    for (const int64_t dim : std::get<std::vector<int64_t>>(list->value)) {
      const size_t at = wrapped_dim(list->name, dim, count);
      check(!dims[at], list->name, " has dimension ", at, " more than once");
      dims.set(at);
    }
  }
  if (dims.none()) dims.set();
  return dims & ~(~ops::Dims() << count);
}

/// The type that an operator with a type among its arguments computes with, else the operands'.
DType common_type(const LineOp& op, const Call& call, std::span<const View> operands) {
  const Bound* const given = argument_of<DType>(call);
  const DType common = given != nullptr ? std::get<DType>(given->value) : ops::promoted(operands);
  const Bound& named = given != nullptr ? *given : call[0];
  check(op.dtypes.contains(common), named.name, given != nullptr ? " is " : " has type ", name_of(common),
        "; accepted are ", NamesOf{op.dtypes});
  return common;
}

void check_result_type(const LineOp& op, size_t i, DType common, const Bound& result) {
  switch (op.gives(i)) {
    case ops::Holds::kPosition:
      return check_type(result, tile::DTypes(DType::kI32, DType::kI64));
    case ops::Holds::kTruth:
      return check_type(result, tile::DTypes(DType::kBool, DType::kU8));
    default:
      return check(ops::can_cast(common, result.view().dtype), "the result has type ", name_of(common),
                   ", which ", result.name, " of type ", name_of(result.view().dtype), " cannot take");
  }
}

/// The shapes of layer normalization, as input and normalizedShape have them.
class Normalization {
 public:
  Normalization(const Bound& input, const Bound& shape) : sizes_(input.view().sizes) {
    normalized_ = std::get<std::vector<int64_t>>(shape.value);
    const bool fits = !normalized_.empty() && normalized_.size() <= sizes_.size() &&
                      std::equal(normalized_.rbegin(), normalized_.rend(), sizes_.rbegin());
    check(fits, shape.name, " is ", Listed{normalized_}, "; one or more of the last sizes of ", input.name,
          ", ", Listed{sizes_}, ", are accepted");
    statistics_ = sizes_;
    std::fill(statistics_.begin() + static_cast<ptrdiff_t>(split()), statistics_.end(), 1);
  }

  size_t split() const { return sizes_.size() - normalized_.size(); }
  View whole(const Bound& tensor) const { return checked(tensor, sizes_); }
  View statistic(const Bound& tensor) const { return checked(tensor, statistics_); }
  std::optional<View> optional_statistic(const Bound& tensor) const {
    return tensor.given() ? std::optional(statistic(tensor)) : std::nullopt;
  }
  std::optional<View> parameter(const Bound& tensor) const {
    return tensor.given() ? std::optional(checked(tensor, normalized_)) : std::nullopt;
  }

 private:
  static View checked(const Bound& tensor, std::span<const int64_t> sizes) {
    check_type(tensor, ops::kAllFloats);
    check_shape(tensor, sizes);
    return tensor.view();
  }

  std::vector<int64_t> sizes_, normalized_, statistics_;
};

}  // namespace

Launches plan_along(const Call& call, Workspace&) {
  const LineOp& op = ops::line_op(call.op.name);
  const Bound& result = call.arguments.back();
  const auto& sizes = call[0].view().sizes;
  const bool converts = argument_of<DType>(call) != nullptr;
  std::vector<View> views = {result.view()};
  for (const Bound& argument : call.arguments) {
    if (!argument.is_tensor) continue;
    check_type(argument, converts ? tile::kAll : op.dtypes);
    check_shape(argument, sizes);
    if (!argument.written) views.push_back(argument.view());
  }
  const DType common = common_type(op, call, std::span(views).subspan(1));
  if (converts) check_result_type(op, 0, common, result);
  const size_t dim = dimension_of(call, sizes.size());
  if (result.view().elements() == 0) return {};
  return {prepare(op, common, views, dim)};
}

Launches plan_reduce(const Call& call, Workspace& workspace) {
  const LineOp& op = ops::line_op(call.op.name);
  const View& operand = call[0].view();
  const DType common = common_type(op, call, std::span(&operand, 1));
  const ops::Dims over = dimensions_of(call, operand.sizes.size());
  const Bound* const keep = argument_of<bool>(call);
  const auto sizes = ops::reduced_sizes(operand.sizes, over, keep != nullptr && std::get<bool>(keep->value));
  std::vector<View> results;
  for (const Bound& argument : call.arguments) {
    if (!argument.written) continue;
    check_result_type(op, results.size(), common, argument);
    check_shape(argument, sizes);
    results.push_back(argument.view());
  }
  if (results.front().elements() == 0) return {};
  check(op.of_nothing || operand.elements() != 0, call[0].name, " has shape ", Listed{operand.sizes},
        "; elements are needed");
  return prepare(ops::Reduction{op, common, results, operand, over}, workspace.taker());
}

Launches plan_layer_norm(const Call& call, Workspace& workspace) {
  const Normalization shapes(call[0], call[1]);
  return prepare(ops::LayerNorm{.split = shapes.split(),
                                .x = shapes.whole(call[0]),
                                .y = shapes.whole(call[5]),
                                .weight = shapes.parameter(call[2]),
                                .bias = shapes.parameter(call[3]),
                                .eps = std::get<double>(call[4].value),
                                .mean = shapes.optional_statistic(call[6]),
                                .factor = shapes.optional_statistic(call[7])},
                 workspace.taker());
}

Launches plan_layer_norm_backward(const Call& call, Workspace& workspace) {
  const auto& mask = std::get<std::vector<bool>>(call[7].value);
  check(mask.size() == 3, call[7].name, " has ", mask.size(), " values; 3 are accepted");
  for (size_t i = 0; i < 3; ++i)
    abi::check(!mask[i] || call[8 + i].given(), ACLNN_ERR_PARAM_NULLPTR, call[8 + i].name, " is null, but ",
               call[7].name, "[", i, "] is true");
  const Normalization shapes(call[1], call[2]);
  return prepare(
      ops::LayerNormBackward{
          .split = shapes.split(),
          .grad = shapes.whole(call[0]),
          .x = shapes.whole(call[1]),
          .mean = shapes.statistic(call[3]),
          .factor = shapes.statistic(call[4]),
          .weight = shapes.parameter(call[5]),
          .of_x = mask[0] ? std::optional(shapes.whole(call[8])) : std::nullopt,
          .of_weight = mask[1] ? shapes.parameter(call[9]) : std::nullopt,
          .of_bias = mask[2] ? shapes.parameter(call[10]) : std::nullopt,
      },
      workspace.taker());
}

}  // namespace anynpu::aclnn
