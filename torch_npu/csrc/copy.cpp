#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/NativeFunctions.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

#include "runtime/memory.h"
#include "torch_npu/csrc/alias.h"
#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/kernel_call.h"
#include "torch_npu/csrc/pinned.h"
#include "torch_npu/csrc/sync_debug.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

using anynpu::Stream;
using at::Tensor;
using c10::Scalar;

/// What a strided copy or fill does for a byte, in the measure of lane_for().
constexpr double kCopyWork = 0.25;

bool on_npu(const Tensor& tensor) { return tensor.device().type() == c10::DeviceType::PrivateUse1; }

/// What a kernel on a stream sees of `tensor`: host tensors as they are, npu tensors as aliases.
Tensor kernel_view(const Tensor& tensor, bool written) {
  return on_npu(tensor) ? borrowed_alias(tensor, written) : tensor;
}

double bytes_of(const Tensor& tensor) { return static_cast<double>(tensor.numel() * tensor.itemsize()); }

/// `source` with the shape of `target`, or the error that every copy_ raises.
Tensor broadcast_to(const Tensor& source, const Tensor& target) {
  if (source.sizes() == target.sizes()) return source;
  const auto shape = at::infer_size_dimvector(target.sizes(), source.sizes());
  TORCH_CHECK(target.sizes() == shape, "output with shape ", target.sizes(),
              " doesn't match the broadcast shape ", c10::IntArrayRef(shape));
  return source.expand(shape);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool same_view(const Tensor& a, const Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && same_bits(a, b);
}

/// What a copy between quantized tensors hands over beside the data.
void adopt_quantizer(const Tensor& target, const Tensor& source) {
  TORCH_CHECK(source.is_quantized() == target.is_quantized() || target.is_quantized(),
              "copy_: the source is quantized and the target is not; dequantize() gives a float tensor");
  if (!source.is_quantized()) return;  // quantized as the target is
  TORCH_CHECK(target.qscheme() == source.qscheme() && target.scalar_type() == source.scalar_type(),
              "copy_: quantized tensors must have the same scheme and type, but the target has ",
              c10::toString(target.qscheme()), " and ", target.scalar_type(), ", the source ",
              c10::toString(source.qscheme()), " and ", source.scalar_type());
  at::get_qtensorimpl(target)->set_quantizer_(at::get_qtensorimpl(source)->quantizer());
}

/// True where a copy is one run of bytes.
bool same_layout(const Tensor& a, const Tensor& b) {
  return same_bits(a, b) && a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

/// Enqueues the copy on `stream`. What lies on the host is kept until it is done.
void enqueue_copy(const Tensor& source, const Tensor& target, Stream& stream) {
  static OpCounter& counter = op_counter("aten::copy_");
  counter.count_native();
  if (!same_layout(source, target)) {
    const anynpu::TaskLabel label("copy", anynpu::TaskKind::kCopy, target.nbytes());
    launch_kernel(stream, anynpu::lane_for(kCopyWork * (bytes_of(source) + bytes_of(target))),
                  [to = kernel_view(target, true), from = kernel_view(source, false)] { to.copy_(from); });
    return;
  }
  const auto bytes = static_cast<size_t>(target.numel() * target.itemsize());
  npu_call([&] {
    anynpu::copy_async(target.mutable_data_ptr(), source.const_data_ptr(), bytes, stream);
    const Tensor& host = on_npu(source) ? target : source;
    if (!on_npu(host)) stream.launch(anynpu::Lane::kShort, [kept = host.storage()] {});
  });
}

// [docs:copy]
/// Copies between npu and host, or within npu, of any types, shapes and strides. A copy within npu returns
/// before it is done, and so does one with pinned host memory under `non_blocking`; others are done on
/// return.
Tensor& copy_(Tensor& target, const Tensor& self, bool non_blocking) {
  TORCH_CHECK(!target._is_zerotensor(),
              "ZeroTensors are immutable. Please materialize the tensor using `.clone()`, "
              "if you want a mutable zero tensor.");
  if (self._is_zerotensor()) return target.zero_();
  if (self.is_quantized() || target.is_quantized()) adopt_quantizer(target, self);
  const Tensor source = broadcast_to(self, target);
  if (target.numel() == 0 || same_view(source, target)) return target;
  at::assert_no_internal_overlap(target);
  at::assert_no_partial_overlap(target, source);

  Stream& stream = current_runtime_stream(on_npu(source) ? source.device() : target.device());
  if (on_npu(source) && on_npu(target)) {
    // The other device's stream is part of the order: the copy comes after its work so far, and before what
    // follows.
    Stream& other = current_runtime_stream(target.device());
    if (&other != &stream) npu_call([&] { stream.wait(other.record()); });
    enqueue_copy(source, target, stream);
    if (&other != &stream) npu_call([&] { other.wait(stream.record()); });
    return target;
  }
  const Tensor& host = on_npu(source) ? target : source;
  const bool returns_early = non_blocking && is_pinned(host.const_data_ptr());
  if (!returns_early) note_sync();
  enqueue_copy(source, target, stream);
  if (!returns_early) wait_for_stream(stream);
  return target;
}
// [/docs]

Tensor copy_from(const Tensor& self, const Tensor& target, bool non_blocking) {
  Tensor written = target;
  return copy_(written, self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, false);
}

/// Copies at once: PyTorch's copy-on-write storages need memory whose context is its address, and ours is a
/// block.
Tensor lazy_clone(const Tensor& self) { return self.clone(); }

Scalar local_scalar_dense(const Tensor& self) {
  note_sync();
  wait_for_stream(current_runtime_stream(self.device()));
  return at::native::_local_scalar_dense_cpu(borrowed_alias(self, false));
}

/// True where `value` is one byte, repeated, in the type of `tensor`; sets `byte`.
bool repeats_one_byte(const Tensor& value, uint8_t* byte) {
  const auto* bytes = static_cast<const uint8_t*>(value.const_data_ptr());
  *byte = bytes[0];
  return std::all_of(bytes, bytes + value.itemsize(), [&](uint8_t other) { return other == bytes[0]; });
}

Tensor& fill_scalar_(Tensor& self, const Scalar& value) {
  static OpCounter& counter = op_counter("aten::fill_");
  // Raises here, and not in the stream, where the type cannot hold the value. PyTorch has other rules for one
  // element than for more.
  const Tensor converted =
      at::full({self.numel() == 1 ? 1 : 2}, value, at::device(at::kCPU).dtype(self.scalar_type()));
  if (self.numel() == 0) return self;
  counter.count_native();
  Stream& stream = current_runtime_stream(self.device());
  uint8_t byte = 0;
  if (self.is_non_overlapping_and_dense() && repeats_one_byte(converted, &byte)) {
    npu_call([&] { anynpu::fill_async(self.mutable_data_ptr(), byte, self.nbytes(), stream); });
  } else {
    const anynpu::TaskLabel label("fill", anynpu::TaskKind::kFill, self.nbytes());
    launch_kernel(stream, anynpu::lane_for(kCopyWork * bytes_of(self)),
                  [to = borrowed_alias(self, true), value] { to.fill_(value); });
  }
  return self;
}

Tensor& zero_(Tensor& self) { return fill_scalar_(self, 0); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_foreach_copy_", at::native::foreach_tensor_copy_list_kernel_slow_);  // also between devices
  m.impl("_lazy_clone", lazy_clone);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("copy_", copy_);
  m.impl("fill_.Scalar", fill_scalar_);
  m.impl("zero_", zero_);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { m.impl("copy_", copy_); }

}  // namespace
}  // namespace torch_npu
