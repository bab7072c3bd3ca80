#include "torch_npu/csrc/fallback.h"

#include <ATen/core/List.h>
#include <torch/library.h>

#include <atomic>
#include <optional>
#include <utility>

#include "torch_npu/csrc/alias.h"
#include "torch_npu/csrc/cpu_allocator.h"
#include "torch_npu/csrc/fallback_rules.h"
#include "torch_npu/csrc/generator.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/kernel_call.h"
#include "torch_npu/csrc/sync_debug.h"

namespace torch_npu {
namespace {

using at::Tensor;
using c10::Device;
using c10::IValue;
using torch::jit::Stack;

std::atomic<FallbackMode> mode = FallbackMode::kAllow;

/// How an argument has a tensor.
enum class Held : uint8_t { kAlone, kInList, kInOptionalList };

/// The devices among the arguments of a call: npu, and at most the CPU tensors that the operator accepts
/// beside it.
class CallDevice {
 public:
  CallDevice(const c10::OperatorHandle& op, const OpPlan& plan) : op_(op), plan_(plan) {}

  /// Notes the tensor, which is (a member of) argument `index`.
  void note(const Tensor& tensor, size_t index, Held held) {
    if (tensor.device().type() == c10::DeviceType::CPU && !plan_.writes(index)) {
      const CpuArguments accepted = plan_.cpu_arguments;
      if (tensor.dim() == 0 && accepted != CpuArguments::kNone) return;
      if (held == Held::kInOptionalList && accepted == CpuArguments::kScalarsAndIndices) return;
      if (held == Held::kAlone && accepted == CpuArguments::kScalarsAndNumbers) return;
      if (accepted == CpuArguments::kAll) return;
    }
    note(tensor.device(), index);
  }

  void note(Device device, size_t index) {
    if (device.type() == c10::DeviceType::PrivateUse1 && !device.has_index())
      device.set_index(current_device());
    if (!first_.has_value()) first_ = device;
    TORCH_CHECK(*first_ == device,
                "Expected all tensors to be on the same device, but found at least two devices, ", *first_,
                " and ", device, "! (when checking argument ", op_.schema().arguments()[index].name(), " of ",
                op_.operator_name(), ")");
  }

  /// The npu device of the call; the current one where no argument names any.
  Device npu() const {
    if (!first_.has_value()) return {c10::DeviceType::PrivateUse1, current_device()};
    TORCH_CHECK(first_->type() == c10::DeviceType::PrivateUse1, op_.operator_name(),
                ": expected the arguments to be on an npu device, but they are on ", *first_);
    return *first_;
  }

 private:
  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  std::optional<Device> first_;
};

/// Calls `function(tensor, held)` for every defined tensor of the argument.
template <class F>
void for_each_tensor(const IValue& argument, const F& function) {
  if (argument.isTensor()) {
    if (const Tensor& tensor = argument.toTensor(); tensor.defined()) function(tensor, Held::kAlone);
  } else if (const bool optional = argument.isOptionalTensorList(); optional || argument.isTensorList()) {
    for (const IValue& member : argument.toListRef())
      if (member.isTensor() && member.toTensor().defined())
        function(member.toTensor(), optional ? Held::kInOptionalList : Held::kInList);
  }
}

Device device_of_call(const c10::OperatorHandle& op, const OpPlan& plan, at::ArrayRef<IValue> arguments) {
  CallDevice device(op, plan);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isDevice()) device.note(arguments[i].toDevice(), i);
    for_each_tensor(arguments[i], [&](const Tensor& tensor, Held held) { device.note(tensor, i, held); });
  }
  return device.npu();
}

/// One operator call: its arguments become what the CPU kernel takes, its results what the caller expects.
class FallbackCall {
 public:
  FallbackCall(const c10::OperatorHandle& op, const OpPlan& plan, Stack& stack)
      : op_(op),
        plan_(plan),
        stack_(stack),
        device_(device_of_call(op, plan, torch::jit::last(stack, plan.arguments))),
        stream_(current_runtime_stream(device_)),
        scope_(stream_),
        aliases_(scope_, op.operator_name(), plan.counter) {}

  void run(c10::DispatchKeySet keys) {
    const c10::DispatchKeySet cpu_keys = with_backend(keys, c10::BackendComponent::CPUBit);
    TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(cpu_keys.highestPriorityTypeId()),
                                op_.operator_name(),
                                ": neither device npu nor PyTorch's CPU backend has a kernel for ",
                                cpu_keys.highestPriorityTypeId(), " tensors");
    for (size_t i = 0; i < plan_.arguments; ++i) lower(torch::jit::peek(stack_, i, plan_.arguments), i);
    const anynpu::TaskLabel label(plan_.counter.name.c_str());
    // Whatever it got: schemas do not say of every argument that a kernel writes it, as running statistics.
    const auto addresses = aliases_.addresses();
    call_kernel(stream_, anynpu::lane_for(bytes_ * plan_.work), anynpu::Writes(addresses), [&] {
      ArenaScope::Entry allocations(scope_);
      op_.redispatchBoxed(cpu_keys, &stack_);
    });
    aliases_.adopt_changes();
    for (size_t i = 0; i < plan_.returns; ++i) lift(torch::jit::peek(stack_, i, plan_.returns));
  }

 private:
  Tensor lower(Tensor tensor, size_t index) {
    if (!tensor.defined() || tensor.device().type() != c10::DeviceType::PrivateUse1) return tensor;
    bytes_ += static_cast<double>(tensor.is_sparse() ? 0 : tensor.numel() * tensor.itemsize());
    return aliases_.alias(std::move(tensor), plan_.writes(index));
  }

  void lower(IValue& argument, size_t index) {
    if (argument.isTensor()) {
      argument = lower(std::move(argument).toTensor(), index);
    } else if (argument.isTensorList()) {
      c10::List<Tensor> lowered;
      for (Tensor& tensor : argument.toTensorVector()) lowered.push_back(lower(std::move(tensor), index));
      argument = std::move(lowered);
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> lowered;
      for (std::optional<Tensor>& tensor : argument.toOptionalTensorVector())
        lowered.push_back(tensor.has_value() ? std::optional(lower(std::move(*tensor), index))
                                             : std::nullopt);
      argument = std::move(lowered);
    } else if (argument.isDevice()) {
      argument = Device(c10::DeviceType::CPU);
    } else if (static_cast<int>(index) == plan_.generator) {
      argument =
          engine_of_call(argument.isNone() ? default_npu_generator(device_.index()) : argument.toGenerator());
    }
  }

  void lift(IValue& result) {
    if (result.isTensor()) {
      result = aliases_.to_npu(result.toTensor());
    } else if (result.isTensorList()) {
      std::vector<Tensor> tensors = result.toTensorVector();
      result = IValue();  // which may have been the other owner of the tensors
      // The newest first, as the scope finds its blocks in that order.
      for (auto tensor = tensors.rbegin(); tensor != tensors.rend(); ++tensor)
        *tensor = aliases_.to_npu(*tensor);
      result = c10::List<Tensor>(std::move(tensors));
    }
  }

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  Stack& stack_;
  const Device device_;
  anynpu::Stream& stream_;
  ArenaScope scope_;
  AliasSet aliases_;
  double bytes_ = 0;
};

/// Native kernels leave wrong arguments to PyTorch's, which says what is wrong with them.
constexpr const char* kOfNone = " has no native kernel for device npu";
constexpr const char* kOfCall =
    " has no native kernel for device npu that takes these arguments, or they are wrong";

void check_mode(const c10::OperatorHandle& op, const OpPlan& plan, const char* lack) {
  const FallbackMode now = fallback_mode();
  if (now == FallbackMode::kAllow) return;
  TORCH_CHECK_NOT_IMPLEMENTED(now != FallbackMode::kError, op.operator_name(), lack,
                              ", and the fallback mode is \"error\"");
  if (!plan.warned.exchange(true))
    TORCH_WARN(op.operator_name(), lack, "; PyTorch's CPU kernel runs in its place");
}

// [docs:fallback]
void fall_back(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, const char* lack) {
  const OpPlan& plan = plan_of(op);
  check_mode(op, plan, lack);
  plan.counter.count_fallback();
  if (plan.reads_values) note_sync();
  FallbackCall(op, plan, *stack).run(keys);
}
// [/docs]

}  // namespace

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  fall_back(op, keys, stack, kOfNone);
}
void fallback_of_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  fall_back(op, keys, stack, kOfCall);
}

FallbackMode fallback_mode() { return mode.load(std::memory_order_relaxed); }
void set_fallback_mode(FallbackMode next) { mode = next; }

}  // namespace torch_npu
