#include <ATen/ScalarOps.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>

#include "base/error.h"
#include "torch_npu/csrc/elementwise.h"
#include "torch_npu/csrc/native_op.h"
#include "torch_npu/csrc/typed_kernel.h"

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

/// An argument of a call for tensors, which is not copied.
using Given = std::variant<const Tensor*, c10::Scalar, std::string_view>;

Given given(const Tensor& tensor) { return &tensor; }
Given given(const c10::Scalar& number) { return number; }
Given given(std::string_view text) { return text; }
/// Element `index` of an argument that is a list; else all of it.
Given given(const IValue& value, size_t index) {
  if (value.isList()) return given(value.toListRef()[index], 0);
  if (value.isTensor()) return given(value.toTensor());
  if (value.isString()) return given(value.toStringView());
  return given(value.toScalar());
}

ElementwisePlan::Operand as_operand(const Given& value) {
  using Operand = ElementwisePlan::Operand;
  if (const auto* tensor = std::get_if<const Tensor*>(&value)) return Operand::borrowed(**tensor);
  return Operand::owned(at::native::wrapped_scalar_tensor(std::get<c10::Scalar>(value)));
}

/// The kernel of one overload of ATen's.
class ElementwiseKernel {
 public:
  ElementwiseKernel(const Elementwise& op, Signature signature) : op_(op), signature_(std::move(signature)) {}

  Results operator()(Arguments arguments, OpCounter& counter) const;

  using Plan = ElementwisePlan;
  /// Makes a new plan that of a call for tensors; false where there is no kernel for it.
  template <class... Parameters>
  bool plan(Plan& plan, const Parameters&... arguments) const {
    return make(plan, {given(arguments)...});
  }

 private:
  bool make(Plan& plan, at::ArrayRef<Given> arguments) const;
  /// How many calls for tensors it is; nothing where lists disagree.
  std::optional<size_t> calls_of(Arguments arguments) const;
  Results results_of(Arguments arguments, at::ArrayRef<ElementwisePlan> plans) const;

  const Elementwise& op_;
  const Signature signature_;
};

Results ElementwiseKernel::operator()(Arguments arguments, OpCounter& counter) const {
  const auto calls = calls_of(arguments);
  if (!calls) return std::nullopt;
  c10::SmallVector<ElementwisePlan, 1> plans(*calls);
  c10::SmallVector<Given, 6> of_call;
  for (size_t i = 0; i < *calls; ++i) {
    of_call.clear();
    for (const IValue& argument : arguments) of_call.push_back(given(argument, i));
    if (!make(plans[i], of_call)) return std::nullopt;
  }
  for (ElementwisePlan& plan : plans) plan.launch(counter);
  return results_of(arguments, plans);
}

bool ElementwiseKernel::make(Plan& plan, at::ArrayRef<Given> arguments) const {
  ElementwisePlan::Arguments made;
  if (signature_.choice) {
    const auto& values = op_.choice->values;
    const auto found =
        std::find(values.begin(), values.end(), std::get<std::string_view>(arguments[*signature_.choice]));
    if (found == values.end()) return false;
    made.choice = static_cast<size_t>(found - values.begin());
  }
  for (const size_t operand : signature_.operands) made.operands.push_back(as_operand(arguments[operand]));
  for (size_t i = 0; i < signature_.numbers.size(); ++i) {
    const auto place = signature_.numbers[i];
    made.numbers.push_back(place ? std::get<c10::Scalar>(arguments[*place])
                                 : c10::Scalar(static_cast<int64_t>(*op_.numbers[i].otherwise)));
  }
  if (signature_.out) made.results.push_back(as_operand(arguments[*signature_.out]));
  return plan.make(op_, made);
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

Results ElementwiseKernel::results_of(Arguments arguments, at::ArrayRef<ElementwisePlan> plans) const {
  Results results(std::in_place);
  if (!signature_.lists) {
    results->push_back(signature_.out ? arguments[*signature_.out] : IValue(plans[0].result(0)));
  } else if (signature_.returns) {
    c10::List<Tensor> list;
    for (const ElementwisePlan& plan : plans) list.push_back(plan.result(0));
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
  const ElementwiseKernel kernel(*row->second, std::move(*signature));
  using T = const Tensor&;
  using S = const c10::Scalar&;
  add_typed<Tensor(T), Tensor(T, T), Tensor(T, S), Tensor(T, T, T), Tensor(T, T, S), Tensor(T, S, S),
            Tensor(T, std::string_view), Tensor&(Tensor&), Tensor&(Tensor&, T), Tensor&(Tensor&, S),
            Tensor&(Tensor&, T, S), Tensor&(Tensor&, S, S)>(aten, op, {row->second->name}, kernel,
                                                            by_blocks(kernel, op.schema()));
  return true;
}

}  // namespace torch_npu
