#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace torch_npu {

/// Runs `op` with PyTorch's CPU kernel on the memory of its npu tensors, without copying any. The kernel of
/// every operator that has no native one.
void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
/// The same of an operator that has a native one, which does not take the call.
void fallback_of_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// Makes fallback() the kernel of every operator without a native one, for all layouts of device npu. Called
/// once, when the native kernels are registered.
void register_fallbacks();

/// What happens when an operator has no native kernel.
enum class FallbackMode : uint8_t {
  kAllow,  ///< the fallback runs
  kWarn,   ///< the fallback runs, after a warning at each operator's first time
  kError,  ///< NotImplementedError
};
FallbackMode fallback_mode();
void set_fallback_mode(FallbackMode mode);

}  // namespace torch_npu
