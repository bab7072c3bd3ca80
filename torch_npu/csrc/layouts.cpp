#include <ATen/NativeFunctions.h>
#include <torch/library.h>

#include "torch_npu/csrc/alias.h"

namespace torch_npu {
namespace {

using at::Tensor;
using std::optional;

/// Takes the scheme of `like`, of either device, for a tensor of either device. A quantizer's own tensors are
/// CPU tensors for both, so PyTorch's function reads them from an alias.
Tensor empty_quantized(c10::IntArrayRef size, const Tensor& like, optional<c10::ScalarType> dtype,
                       optional<c10::Layout> layout, optional<c10::Device> device, optional<bool> pin_memory,
                       optional<c10::MemoryFormat> memory_format) {
  static OpCounter& counter = op_counter("aten::empty_quantized");
  return at::native::empty_quantized(size, like.is_cpu() ? like : borrowed_alias(like, false, counter), dtype,
                                     layout, device.has_value() ? device : like.device(), pin_memory,
                                     memory_format);
}

// What moves tensors of other layouts between devices: the fallback works within one. Sparse ones need
// nothing of their own, as PyTorch moves their members.
TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("empty_quantized", empty_quantized);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_quantized_);  // as a file is loaded
}

TORCH_LIBRARY_IMPL(aten, NestedTensorPrivateUse1, m) {
  m.impl("_to_copy", at::native::_to_copy_nested);
  m.impl("copy_", at::native::copy_nested_);
  m.impl("empty_like", at::native::empty_like_nested);
}

}  // namespace
}  // namespace torch_npu
