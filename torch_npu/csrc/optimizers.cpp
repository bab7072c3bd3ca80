// ATen's fused steps of optimizers, over the rows of src/ops/math/optimizers.h.

#include <torch/library.h>

#include <cmath>

#include "torch_npu/csrc/elementwise.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::ops::Elementwise;
using c10::Scalar;

/// The arguments of _fused_adam_ and _fused_adamw_, in order.
enum Argument : size_t {
  kParams,
  kGrads,
  kFirst,
  kSecond,
  kLargest,
  kSteps,
  kRate,
  kBeta1,
  kBeta2,
  kDecay,
  kEpsilon,
  kAmsgrad,
  kMaximize,
  kGradScale,
  kFoundInf,
  kArguments
};

/// The numbers of the rows of Adam.
c10::SmallVector<Scalar, 2> adam_numbers(Arguments arguments) {
  const double beta1 = arguments[kBeta1].toDouble(), beta2 = arguments[kBeta2].toDouble();
  return {arguments[kRate].toDouble(),
          1 - beta1,
          beta2,
          1 - beta2,
          std::log(beta1),
          std::log(beta2),
          arguments[kDecay].toDouble(),
          arguments[kEpsilon].toDouble(),
          arguments[kMaximize].toBool() ? -1.0 : 1.0};
}

using Plans = c10::SmallVector<ElementwisePlan, 1>;

/// Nothing where there is no kernel for such arguments.
std::optional<Plans> plans_of(Arguments arguments, size_t choice) {
  if (!arguments[kRate].isDouble() || !arguments[kGradScale].isNone() || !arguments[kFoundInf].isNone())
    return std::nullopt;
  const bool amsgrad = arguments[kAmsgrad].toBool();
  const Elementwise& op = anynpu::ops::elementwise_op(amsgrad ? "Amsgrad" : "Adam");
  const auto list = [&](Argument argument) { return arguments[argument].toTensorList(); };
  const size_t calls = list(kParams).size();
  c10::SmallVector<Argument, 6> operands = {kParams, kGrads, kFirst, kSecond},
                                results = {kParams, kFirst, kSecond};
  if (amsgrad) operands.push_back(kLargest), results.push_back(kLargest);
  operands.push_back(kSteps);
  for (const Argument operand : operands)
    if (list(operand).size() != calls) return std::nullopt;
  ElementwisePlan::Arguments call;
  call.choice = choice;
  call.numbers = adam_numbers(arguments);
  Plans plans(calls);
  for (size_t i = 0; i < calls; ++i) {
    call.operands.clear();
    call.results.clear();
    using Operand = ElementwisePlan::Operand;
    for (const Argument operand : operands)
      call.operands.push_back(Operand::borrowed(arguments[operand].toListRef()[i].toTensor()));
    for (const Argument result : results)
      call.results.push_back(Operand::borrowed(arguments[result].toListRef()[i].toTensor()));
    if (!plans[i].make(op, call)) return std::nullopt;
  }
  return plans;
}

/// One step of a list of parameters, each in one launch.
template <size_t kDecayChoice>
Results fused_adam(Arguments arguments, OpCounter& counter) {
  auto plans = plans_of(arguments, kDecayChoice);
  if (!plans) return std::nullopt;
  for (ElementwisePlan& plan : *plans) plan.launch(counter);
  return Results(std::in_place);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, aten) {
  add_native(aten, "_fused_adam_", {"Adam", "Amsgrad"}, fused_adam<0>);
  add_native(aten, "_fused_adamw_", {"Adam", "Amsgrad"}, fused_adam<1>);
}

}  // namespace
}  // namespace torch_npu
