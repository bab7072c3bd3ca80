#include <algorithm>
#include <string>

#include "abi/aclnn/plans.h"
#include "abi/aclnn/shapes.h"
#include "abi/aclnn/status.h"
#include "ops/copy.h"
#include "ops/elementwise.h"
#include "ops/promotion.h"
#include "tile/lane.h"

namespace anynpu::aclnn {
namespace {

using ops::Elementwise;
using ops::Promotable;
using ops::View;
using tile::DType;
using tile::Literal;

/// What the arguments of a call are to its operator.
struct Roles {
  std::vector<const Bound*> operands, numbers;
  const Bound* choice = nullptr;
  const Bound* result = nullptr;

  Roles(const Elementwise& op, const Call& call) {
    for (const Bound& argument : call.arguments) {
      const bool number = std::holds_alternative<Number>(argument.value);
      if ((argument.is_tensor || number) && operands.size() < static_cast<size_t>(op.operands))
        operands.push_back(&argument);
      else if (number)
        numbers.push_back(&argument);
      else if (!argument.is_tensor)
        choice = &argument;
      if (argument.written) result = &argument;
    }
  }
};

size_t chosen(const Elementwise& op, const Bound* choice) {
  if (choice == nullptr) return 0;
  const auto& values = op.choice->values;
  const auto* const word = std::get_if<std::string>(&choice->value);
  const size_t index =
      word != nullptr ? static_cast<size_t>(std::find(values.begin(), values.end(), *word) - values.begin())
                      : static_cast<size_t>(std::get<int64_t>(choice->value));
  if (index < values.size()) return index;
  std::string accepted;
  for (const std::string_view value : values) accepted += concat(accepted.empty() ? "" : ", ", value);
  abi::fail(ACLNN_ERR_PARAM_INVALID, choice->name, " is ", word != nullptr ? *word : std::to_string(index),
            "; accepted are ", accepted, word != nullptr ? "" : ", by number from 0 on");
}

DType common_type(const Elementwise& op, const Roles& roles) {
  std::vector<Promotable> promotables;
  for (size_t i = 0; i < roles.operands.size(); ++i) {
    const Bound& operand = *roles.operands[i];
    if (ops::follows(op, i)) {
      if (operand.is_tensor) check_shape(operand, {});
      continue;
    }
    if (const auto* number = std::get_if<Number>(&operand.value)) {
      promotables.push_back({number->dtype, Promotable::Weight::kNumber});
      continue;
    }
    const View& view = operand.view();
    using Weight = Promotable::Weight;
    if (!ops::is_mask(op, i))
      promotables.push_back({view.dtype, view.sizes.empty() ? Weight::kZeroDimensional : Weight::kTensor});
    else
      check(view.dtype == DType::kBool || view.dtype == DType::kU8, operand.name, " has type ",
            name_of(view.dtype), "; bool and u8 are accepted");
  }
  const DType common = ops::common_type(op, ops::promoted(promotables));
  check(op.dtypes.contains(common), "the operands have common type ", name_of(common), "; accepted are ",
        NamesOf{op.dtypes});
  return common;
}

/// A number beside the operands, in the type that is computed with, which must have it.
Literal parameter(const Bound& argument, DType common) {
  const Number& number = std::get<Number>(argument.value);
  if (!tile::kBits.contains(common))
    return std::visit([](auto value) { return Literal(static_cast<double>(value)); }, number.value);
  const auto* const integer = std::get_if<int64_t>(&number.value);
  check(integer != nullptr, argument.name, " is a float (",
        std::get_if<double>(&number.value) ? std::get<double>(number.value) : 0.0,
        "), but the operands have common type ", name_of(common));
  if (common == DType::kBool) return int64_t{*integer != 0};
  check(ops::holds(common, *integer), argument.name, " is ", *integer, ", which ", name_of(common),
        " does not have");
  return *integer;
}

/// A number in place of a tensor: integers wrap around, as where a tensor had it.
Literal operand_number(const Number& number, DType common) {
  const auto convert = [&]<class T>(std::type_identity<T>, auto value) -> Literal {
    if constexpr (std::is_integral_v<T>) return static_cast<int64_t>(tile::convert<T>(value));
    return static_cast<double>(value);
  };
  return std::visit(
      [&](auto value) {
        return tile::visit(common, [&]<class T>(std::type_identity<T> type) { return convert(type, value); });
      },
      number.value);
}

Launches fill(const Bound& result, const Number& value) {
  const View& out = result.view();
  if (out.elements() == 0) return {};
  const ops::Iteration iteration({&out, 1});
  const ops::Operand operands[] = {
      iteration.operands()[0],
      {.dtype = ops::compute_type(out.dtype), .number = operand_number(value, out.dtype)}};
  return {prepare(
      ops::ElementwiseCall{ops::elementwise_op("Copy"), 0, out.dtype, iteration.sizes(), operands, {}})};
}

}  // namespace

Launches plan_elementwise(const Call& call, Workspace&) {
  const Elementwise& op = ops::elementwise_op(call.op.name);
  const Roles roles(op, call);
  const Bound& result = *roles.result;
  const View& out = result.view();
  const size_t choice = chosen(op, roles.choice);
  const DType common = common_type(op, roles);
  const DType made = op.compares ? DType::kBool : common;
  check(ops::can_cast(made, out.dtype), "the result has type ", name_of(made), ", which ", result.name,
        " of type ", name_of(out.dtype), " cannot take");
  std::vector<Literal> numbers;
  numbers.reserve(roles.numbers.size());
  for (const Bound* number : roles.numbers) numbers.push_back(parameter(*number, common));
  check_shape(result, broadcast_of(roles.operands));
  if (out.elements() == 0) return {};
  std::vector<View> views = {out};
  for (const Bound* operand : roles.operands)
    if (operand->is_tensor) views.push_back(operand->view().expanded(out.sizes));
  const ops::Iteration iteration(views);
  std::vector<ops::Operand> operands = {iteration.operands()[0]};
  size_t tensors = 1;
  for (const Bound* operand : roles.operands)
    operands.push_back(operand->is_tensor ? iteration.operands()[tensors++]
                                          : ops::Operand{.dtype = ops::compute_type(common),
                                                         .number = operand_number(
                                                             std::get<Number>(operand->value), common)});
  return {prepare(ops::ElementwiseCall{op, choice, common, iteration.sizes(), operands, numbers})};
}

Launches plan_zero(const Call& call, Workspace&) { return fill(call[0], {DType::kI64, int64_t{0}}); }
Launches plan_one(const Call& call, Workspace&) { return fill(call[0], {DType::kI64, int64_t{1}}); }
Launches plan_fill(const Call& call, Workspace&) { return fill(call[0], std::get<Number>(call[1].value)); }

Launches plan_copy(const Call& call, Workspace&) {
  const Bound &to = call[0], &from = call[1];
  const auto sizes = ops::broadcast(to.view().sizes, from.view().sizes);
  check(sizes == to.view().sizes, from.name, " has shape ", Listed{from.view().sizes}, ", which ", to.name,
        " of shape ", Listed{to.view().sizes}, " cannot take");
  if (to.view().elements() == 0) return {};
  return {ops::prepare_copy(to.view(), from.view().expanded(*sizes))};
}

}  // namespace anynpu::aclnn
