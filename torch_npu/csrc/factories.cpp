#include "torch_npu/csrc/factories.h"

#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/TensorFactories.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/formats.h"

namespace torch_npu {
namespace {

using at::Tensor;
using c10::Device;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IntArrayRef;
using c10::Layout;
using c10::MemoryFormat;
using c10::ScalarType;
using std::optional;

constexpr DispatchKeySet kDense(DispatchKey::PrivateUse1);

/// Refuses what no dense tensor of a device can be.
void check_options(const char* function, optional<Layout> layout, optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(Layout::Strided) == Layout::Strided, function, ": layout ", *layout,
              " is not strided");
  TORCH_CHECK(!pin_memory.value_or(false), function, ": Only dense CPU tensors can be pinned");
}

/// Shows reads of uninitialised memory where the user asked for it.
Tensor uninitialized(Tensor tensor) {
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
    at::native::fill_empty_deterministic_(tensor);
  return tensor;
}

Tensor empty(IntArrayRef size, optional<ScalarType> dtype, optional<Layout> layout, optional<Device> device,
             optional<bool> pin_memory, optional<MemoryFormat> memory_format) {
  check_options("empty", layout, pin_memory);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return uninitialized(
      at::detail::empty_generic(size, npu_allocator(), kDense, c10::dtype_or_default(dtype), memory_format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<ScalarType> dtype,
                     optional<Layout> layout, optional<Device> device, optional<bool> pin_memory) {
  check_options("empty_strided", layout, pin_memory);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return uninitialized(
      at::detail::empty_strided_generic(size, stride, npu_allocator(), kDense, c10::dtype_or_default(dtype)));
}

/// In the format of `self`, where it has one and nothing else is asked for.
Tensor empty_like(const Tensor& self, optional<ScalarType> dtype, optional<Layout> layout,
                  optional<Device> device, optional<bool> pin_memory, optional<MemoryFormat> memory_format) {
  const MemoryFormat strides = memory_format.value_or(MemoryFormat::Preserve);
  if (!is_whole(self) || layout.value_or(Layout::Strided) != Layout::Strided ||
      device.value_or(self.device()) != self.device() || pin_memory.value_or(false) ||
      (strides != MemoryFormat::Preserve && strides != MemoryFormat::Contiguous))
    return at::native::empty_like(self, dtype, layout, device, pin_memory, memory_format);
  const c10::DeviceGuard guard(self.device());
  return uninitialized(empty_in_format(*format_of(self), self.sizes(),
                                       self.options().dtype(dtype.value_or(self.scalar_type()))));
}

/// A tensor of zeros without memory, as forward-mode autograd makes them.
Tensor efficient_zero_tensor(IntArrayRef size, optional<ScalarType> dtype, optional<Layout> layout,
                             optional<Device> device, optional<bool> pin_memory) {
  check_options("_efficientzerotensor", layout, pin_memory);
  const c10::DeviceGuard guard(c10::device_or_default(device));
  at::native::ZeroTensorAllocator allocator(guard.current_device());
  return at::detail::empty_generic(size, &allocator, kDense | DispatchKeySet(DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

}  // namespace

Tensor empty_alike(const Tensor& like, ScalarType dtype) {
  const auto format = like.is_contiguous()                             ? optional(MemoryFormat::Contiguous)
                      : like.is_contiguous(MemoryFormat::ChannelsLast) ? optional(MemoryFormat::ChannelsLast)
                                                                       : std::nullopt;
  return format
             ? empty(like.sizes(), dtype, std::nullopt, like.device(), std::nullopt, format)
             : empty_strided(like.sizes(), like.strides(), dtype, std::nullopt, like.device(), std::nullopt);
}

Tensor empty_contiguous(IntArrayRef sizes, ScalarType dtype, c10::Device device) {
  return empty(sizes, dtype, std::nullopt, device, std::nullopt, std::nullopt);
}

namespace {

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("empty_like", empty_like);
  m.impl("_efficientzerotensor", efficient_zero_tensor);
}

}  // namespace
}  // namespace torch_npu
