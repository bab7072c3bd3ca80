#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/lines.h"
#include "ops/nn/layer_norm.h"
#include "ops/promotion.h"

namespace anynpu::aclnn {
namespace {

using ops::LineOp;
using ops::View;
using tile::DType;

size_t wrapped(const Bound& argument, size_t dims) {
  const int64_t dim = std::get<int64_t>(argument.value);
  const auto count = static_cast<int64_t>(std::max<size_t>(dims, 1));
  check(dim >= -count && dim < count, argument.name, " is ", dim, "; ", -count, " to ", count - 1,
        " are accepted");
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

DType common_type(std::span<const View> operands) {
  DType common = operands.front().dtype;
  for (const View& operand : operands) common = ops::promoted(common, operand.dtype);
  return common;
}

ops::TakeMemory memory_of(Workspace& workspace) {
  return [&workspace](int64_t bytes) { return workspace.take(bytes); };
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
  std::vector<View> views = {result.view()};
  for (const Bound& argument : call.arguments) {
    if (!argument.is_tensor) continue;
    check_type(argument, ops::kAllFloats);
    check_shape(argument, sizes);
    if (!argument.written) views.push_back(argument.view());
  }
  const size_t dim = wrapped(call[static_cast<size_t>(op.operands)], sizes.size());
  if (result.view().elements() == 0) return {};
  return {prepare(op, common_type(std::span(views).subspan(1)), views, dim)};
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
                 memory_of(workspace));
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
      memory_of(workspace));
}

}  // namespace anynpu::aclnn
