#include <ATen/ScalarOps.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "torch_npu/csrc/elementwise.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Elementwise;
using at::Tensor;
using c10::IValue;
using c10::TypeKind;

/// What the arguments of an overload are to its operator.
struct Signature {
  c10::SmallVector<size_t, 4> operands;  ///< their arguments, in the order of the operator's
  c10::SmallVector<std::optional<size_t>, 2>
      numbers;  ///< the same; what is not among the arguments is as usual
  std::optional<size_t> choice, out;
  size_t arguments = 0;
  bool lists = false;    ///< of tensors: a call for each
  bool returns = false;  ///< results

  /// Nothing where the overload takes something else.
  static std::optional<Signature> of(const Elementwise& op, const c10::FunctionSchema& schema);

 private:
  bool take(const Elementwise& op, const c10::Argument& argument, size_t place);
};

/// Whether it is of that kind, or a list of such.
bool is_of(const c10::Argument& argument, TypeKind kind) {
  const c10::TypePtr& type = argument.type();
  return type->kind() == kind || (type->kind() == TypeKind::ListType &&
                                  type->expectRef<c10::ListType>().getElementType()->kind() == kind);
}

bool Signature::take(const Elementwise& op, const c10::Argument& argument, size_t place) {
  const bool full = operands.size() == static_cast<size_t>(op.operands),
             number = numbers.size() < op.numbers.size();
  if (is_of(argument, TypeKind::TensorType)) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) out = place;
    if (!argument.is_out()) operands.push_back(place);
  } else if (number && argument.name() == op.numbers[numbers.size()].name) {
    numbers.emplace_back(place);
  } else if (is_of(argument, TypeKind::NumberType) && !full) {
    operands.push_back(place);
  } else if (is_of(argument, TypeKind::NumberType) && lists && number) {
    numbers.emplace_back(place);
  } else if (op.choice && argument.name() == op.choice->name) {
    choice = place;
  } else {
    return false;
  }
  return true;
}

std::optional<Signature> Signature::of(const Elementwise& op, const c10::FunctionSchema& schema) {
  Signature signature;
  const auto& arguments = schema.arguments();
  signature.arguments = arguments.size();
  signature.returns = !schema.returns().empty();
  signature.lists = !arguments.empty() && arguments[0].type()->kind() == TypeKind::ListType;
  if (signature.lists && !arguments.empty() && arguments.back().is_out()) return std::nullopt;
  for (size_t i = 0; i < arguments.size(); ++i)
    if (!signature.take(op, arguments[i], i)) return std::nullopt;
  while (signature.numbers.size() < op.numbers.size() && op.numbers[signature.numbers.size()].otherwise)
    signature.numbers.emplace_back();
  const bool fits = signature.operands.size() == static_cast<size_t>(op.operands) &&
                    signature.numbers.size() == op.numbers.size() &&
                    signature.choice.has_value() == op.choice.has_value() &&
                    schema.returns().size() == (signature.lists && signature.out ? 0 : 1);
  return fits ? std::optional(std::move(signature)) : std::nullopt;
}

/// Element `index` of an argument that is a list; else all of it.
IValue element_of(const IValue& argument, size_t index) {
  return argument.isList() ? argument.toListRef()[index] : argument;
}

Tensor as_operand(const IValue& value) {
  return value.isTensor() ? value.toTensor() : at::native::wrapped_scalar_tensor(value.toScalar());
}

/// The kernel of one overload of ATen's.
class ElementwiseKernel {
 public:
  ElementwiseKernel(const Elementwise& op, Signature signature) : op_(op), signature_(std::move(signature)) {}

  Results operator()(Arguments arguments, OpCounter& counter) const;

 private:
  std::optional<size_t> chosen(Arguments arguments) const;
  /// How many calls for tensors it is; nothing where lists disagree.
  std::optional<size_t> calls_of(Arguments arguments) const;
  ElementwisePlan::Arguments arguments_of(Arguments arguments, size_t call, size_t choice) const;
  Results results_of(Arguments arguments, at::ArrayRef<ElementwisePlan> plans) const;

  const Elementwise& op_;
  const Signature signature_;
};

Results ElementwiseKernel::operator()(Arguments arguments, OpCounter& counter) const {
  const auto choice = chosen(arguments), calls = calls_of(arguments);
  if (!choice || !calls) return std::nullopt;
  c10::SmallVector<ElementwisePlan, 1> plans(*calls);
  for (size_t i = 0; i < *calls; ++i)
    if (!plans[i].make(op_, arguments_of(arguments, i, *choice))) return std::nullopt;
  for (ElementwisePlan& plan : plans) plan.launch(counter);
  return results_of(arguments, plans);
}

std::optional<size_t> ElementwiseKernel::chosen(Arguments arguments) const {
  if (!signature_.choice) return 0;
  const auto& values = op_.choice->values;
  const auto found = std::find(values.begin(), values.end(), arguments[*signature_.choice].toStringView());
  if (found == values.end()) return std::nullopt;
  return static_cast<size_t>(found - values.begin());
}

std::optional<size_t> ElementwiseKernel::calls_of(Arguments arguments) const {
  if (!signature_.lists) return 1;
  const size_t calls = arguments[0].toListRef().size();
  if (calls == 0) return std::nullopt;
  for (const IValue& argument : arguments) {
    if (argument.isList() && argument.toListRef().size() != calls) return std::nullopt;
    if (argument.isTensor() && argument.toTensor().dim() != 0) return std::nullopt;
  }
  return calls;
}

ElementwisePlan::Arguments ElementwiseKernel::arguments_of(Arguments arguments, size_t call,
                                                           size_t choice) const {
  ElementwisePlan::Arguments made;
  made.choice = choice;
  for (const size_t operand : signature_.operands)
    made.operands.push_back(as_operand(element_of(arguments[operand], call)));
  for (size_t i = 0; i < signature_.numbers.size(); ++i) {
    const auto place = signature_.numbers[i];
    made.numbers.push_back(place ? element_of(arguments[*place], call).toScalar()
                                 : c10::Scalar(static_cast<int64_t>(*op_.numbers[i].otherwise)));
  }
  if (signature_.out) made.results.push_back(element_of(arguments[*signature_.out], call).toTensor());
  return made;
}

Results ElementwiseKernel::results_of(Arguments arguments, at::ArrayRef<ElementwisePlan> plans) const {
  Results results(std::in_place);
  if (!signature_.lists) {
    results->push_back(signature_.out ? arguments[*signature_.out] : IValue(plans[0].result()));
  } else if (signature_.returns) {
    c10::List<Tensor> list;
    for (const ElementwisePlan& plan : plans) list.push_back(plan.result());
    results->emplace_back(std::move(list));
  }
  return results;
}

}  // namespace

bool register_elementwise(torch::Library& aten, const c10::OperatorHandle& op) {
  static const auto rows = [] {
    std::unordered_map<std::string, const Elementwise*> made;
    for (const Elementwise& row : anynpu::ops::elementwise_ops())
      for (const char* prefix : {"aten::", "aten::_foreach_"})
        for (const char* in_place : {"", "_"}) made.emplace(anynpu::concat(prefix, row.aten, in_place), &row);
    return made;
  }();
  const auto row = rows.find(op.operator_name().name);
  if (row == rows.end()) return false;
  auto signature = Signature::of(*row->second, op.schema());
  // A composite of one tensor calls an operator that has a kernel; one of lists calls it for each tensor.
  if (!signature || (!signature->lists && !op.hasKernelForDispatchKey(c10::DispatchKey::CPU))) return false;
  add_native(aten, c10::toString(op.operator_name()), {row->second->name},
             ElementwiseKernel(*row->second, std::move(*signature)));
  return true;
}

}  // namespace torch_npu
