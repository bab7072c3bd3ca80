// ATen's fused steps of optimizers, over the rows of src/ops/math/optimizers.h.

#include <torch/library.h>

#include <cmath>

#include "torch_npu/csrc/elementwise.h"
#include "torch_npu/csrc/fallback.h"

namespace torch_npu {
namespace {

using anynpu::ops::Elementwise;
using c10::IValue;
using c10::Scalar;
using torch::jit::Stack;

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
c10::SmallVector<Scalar, 2> adam_numbers(double rate, double beta1, double beta2, double decay,
                                         double epsilon, bool maximize) {
  return {rate,
          beta1,
          1 - beta1,
          beta2,
          1 - beta2,
          std::log(beta1),
          std::log(beta2),
          decay,
          epsilon,
          maximize ? -1.0 : 1.0};
}

/// One step of a list of parameters, each in one launch.
class AdamKernel : public c10::OperatorKernel {
 public:
  AdamKernel(const char* name, size_t choice) : choice_(choice), counter_(op_counter(name)) {}

  void operator()(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
    const auto arguments = torch::jit::last(*stack, kArguments);
    auto plans = plans_of(arguments);
    if (!plans) return fallback(handle, keys, stack);
    for (ElementwisePlan& plan : *plans) plan.launch(counter_);
    torch::jit::drop(*stack, kArguments);
  }

 private:
  using Plans = c10::SmallVector<ElementwisePlan, 1>;
  /// Nothing where there is no kernel for such arguments.
  std::optional<Plans> plans_of(at::ArrayRef<IValue> arguments) const;

  const size_t choice_;
  OpCounter& counter_;
};

std::optional<AdamKernel::Plans> AdamKernel::plans_of(at::ArrayRef<IValue> arguments) const {
  if (!arguments[kRate].isDouble() || !arguments[kGradScale].isNone() || !arguments[kFoundInf].isNone())
    return std::nullopt;
  const bool amsgrad = arguments[kAmsgrad].toBool();
  const Elementwise& op = *anynpu::ops::find_elementwise(amsgrad ? "Amsgrad" : "Adam");
  const auto list = [&](Argument argument) { return arguments[argument].toTensorList(); };
  const size_t calls = list(kParams).size();
  c10::SmallVector<Argument, 6> operands = {kParams, kGrads, kFirst, kSecond},
                                results = {kParams, kFirst, kSecond};
  if (amsgrad) operands.push_back(kLargest), results.push_back(kLargest);
  operands.push_back(kSteps);
  for (const Argument operand : operands)
    if (list(operand).size() != calls) return std::nullopt;
  ElementwisePlan::Arguments call;
  call.choice = choice_;
  call.numbers = adam_numbers(arguments[kRate].toDouble(), arguments[kBeta1].toDouble(),
                              arguments[kBeta2].toDouble(), arguments[kDecay].toDouble(),
                              arguments[kEpsilon].toDouble(), arguments[kMaximize].toBool());
  Plans plans;
  for (size_t i = 0; i < calls; ++i) {
    call.operands.clear();
    call.results.clear();
    for (const Argument operand : operands) call.operands.push_back(list(operand).get(i));
    for (const Argument result : results) call.results.push_back(list(result).get(i));
    auto plan = ElementwisePlan::make(op, call);
    if (!plan) return std::nullopt;
    plans.push_back(std::move(*plan));
  }
  return plans;
}

void implement(torch::Library& aten, const char* name, size_t choice) {
  aten.impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AdamKernel>(name, choice)));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, aten) {
  implement(aten, "aten::_fused_adam_", 0);
  implement(aten, "aten::_fused_adamw_", 1);
}

}  // namespace
}  // namespace torch_npu
