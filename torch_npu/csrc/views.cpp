#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <torch/library.h>

#include "torch_npu/csrc/allocator.h"

namespace torch_npu {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using c10::MemoryFormat;
using c10::OptionalIntArrayRef;
using c10::Storage;
using std::optional;

/// Gives `tensor` a new geometry, and its storage the bytes that this needs. The storage goes first: where it
/// cannot grow, the tensor keeps a geometry that lies inside it.
void set_geometry(const Tensor& tensor, int64_t offset, IntArrayRef size, OptionalIntArrayRef stride) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  at::detail::check_size_nonnegative(size);
  const auto start = static_cast<size_t>(offset);
  const size_t needed = stride.has_value()
                            ? at::detail::computeStorageNbytes(size, *stride, impl.itemsize(), start)
                            : at::detail::computeStorageNbytesContiguous(size, impl.itemsize(), start);
  c10::StorageImpl& storage = *impl.unsafe_storage().unsafeGetStorageImpl();
  if (c10::multiply_integers(size) != 0 && storage.nbytes() < needed) resize_storage(storage, needed);
  impl.set_storage_offset(offset);
  if (stride.has_value()) {
    impl.set_sizes_and_strides(size, *stride);
  } else {
    impl.set_sizes_contiguous(size);
  }
}

const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<MemoryFormat> memory_format) {
  const auto bytes_before = static_cast<int64_t>(self.storage().nbytes());
  if (self.sizes() != size) set_geometry(self, self.storage_offset(), size, std::nullopt);
  if (memory_format.has_value()) {
    TORCH_CHECK(*memory_format != MemoryFormat::Preserve, "resize_: memory format ", *memory_format,
                " is not accepted");
    self.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
  }
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())
    at::native::fill_resize_deterministic_(self, bytes_before);
  return self;
}

Tensor& set_storage_with_geometry_(Tensor& self, Storage source, int64_t offset, IntArrayRef size,
                                   IntArrayRef stride) {
  Storage before = self.storage();
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);  // exchanges the storage
  try {
    set_geometry(self, offset, size, stride.data() != nullptr ? OptionalIntArrayRef(stride) : std::nullopt);
  } catch (...) {
    self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(before));
    throw;
  }
  return self;
}

Tensor& set_storage_(Tensor& self, Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_with_geometry_(self, std::move(source), 0, elements, {});
}

Tensor& set_tensor_(Tensor& self, const Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_with_geometry_(self, source.storage(), source.storage_offset(), source.sizes(),
                                    source.strides());
}

/// Makes `self` an empty tensor with a storage of its own.
Tensor& set_empty_(Tensor& self) {
  const c10::DeviceIndex device = self.device().index();
  Storage nothing(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocate_on(device, 0), npu_allocator(), /*resizable=*/true));
  return set_storage_with_geometry_(self, std::move(nothing), 0, 0, {});
}

/// A dense tensor on either side of a move.
bool is_exchangeable(const Tensor& tensor) {
  return (tensor.is_cpu() || tensor.is_privateuseone()) && tensor.layout() == c10::kStrided &&
         !tensor.is_quantized() && !tensor.is_nested();
}

/// True where `self.data = from` works. Between the CPU and npu it does, as between the CPU and every device
/// that PyTorch knows: so a module that moves keeps its parameters, and with them ties and optimizers.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  return (is_exchangeable(self) && is_exchangeable(from)) ||
         self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(from.key_set());
}

// Views differ from those of a CPU tensor in nothing but their device, which they take from the storage.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("is_set_to", at::native::is_set_to);
  m.impl("resize_", resize_);
  m.impl("set_", set_empty_);
  m.impl("set_.source_Storage", set_storage_);
  m.impl("set_.source_Storage_storage_offset", set_storage_with_geometry_);
  m.impl("set_.source_Tensor", set_tensor_);
  m.impl("unfold", at::native::unfold);
  m.impl("view", at::native::view);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("view_as_real", at::native::view_as_real);
}

}  // namespace
}  // namespace torch_npu
