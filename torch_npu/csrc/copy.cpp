#include "ops/copy.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/NativeFunctions.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "runtime/memory.h"
#include "torch_npu/csrc/alias.h"
#include "torch_npu/csrc/copy.h"
#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/kernel_call.h"
#include "torch_npu/csrc/native_op.h"
#include "torch_npu/csrc/pinned.h"
#include "torch_npu/csrc/sync_debug.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

using anynpu::Stream;
using anynpu::ops::Operand;
using anynpu::tile::DType;
using at::Tensor;
using c10::Scalar;

/// What a strided copy or fill does for a byte, in the measure of lane_for().
constexpr double kCopyWork = 0.25;

OpCounter& copy_counter() {
  static OpCounter& counter = op_counter("aten::copy_");
  return counter;
}

bool on_npu(const Tensor& tensor) { return tensor.device().type() == c10::DeviceType::PrivateUse1; }

/// What a kernel on a stream sees of `tensor`: host tensors as they are, npu tensors as aliases.
Tensor kernel_view(const Tensor& tensor, bool written) {
  return on_npu(tensor) ? borrowed_alias(tensor, written, copy_counter()) : tensor;
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

/// Dimensions and strides of a copy, as kernels of our own take them.
class CopyLayout {
 public:
  CopyLayout(const Tensor& target, const Tensor& source)
      : elements_(at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)  // copy_ checks it
                      .add_output(target)
                      .add_const_input(source)
                      .resize_outputs(false)
                      .check_all_same_dtype(false)
                      .check_all_same_device(false)
                      .build()) {
    sizes_.assign(elements_.shape().begin(), elements_.shape().end());
    for (int i = 0; i < 2; ++i) strides_[i].assign(elements_.strides(i).begin(), elements_.strides(i).end());
    if (sizes_.empty()) add_innermost(1, 0);
  }

  std::span<const int64_t> sizes() const { return {sizes_.data(), sizes_.size()}; }
  Operand target(DType dtype) const { return operand(0, dtype); }
  Operand source(DType dtype) const { return operand(1, dtype); }

  void add_innermost(int64_t size, int64_t stride) {
    sizes_.insert(sizes_.begin(), size);
    for (auto& strides : strides_) strides.insert(strides.begin(), stride);
  }

 private:
  Operand operand(int i, DType dtype) const {
    return {dtype, elements_.data_ptr(i), {strides_[i].data(), strides_[i].size()}};
  }

  at::TensorIterator elements_;
  c10::SmallVector<int64_t, 6> sizes_, strides_[2];
};

/// An element as kernels move it that do not compute with it: words of at most 8 bytes, of which it has one
/// or two.
struct Words {
  explicit Words(const Tensor& tensor)
      : bytes(std::min<size_t>(tensor.element_size(), 8)), count(tensor.element_size() / bytes) {}
  DType type() const { return anynpu::ops::bits_of(bytes); }

  size_t bytes, count;
};

/// The copy as a kernel of our own; nothing where there is none for the types.
std::optional<anynpu::ops::Launch> kernel_of_copy(const Tensor& source, const Tensor& target) {
  if (source.is_quantized() || target.is_quantized()) return std::nullopt;
  const auto from = dtype_of(source.scalar_type()), to = dtype_of(target.scalar_type());
  const bool same = same_bits(source, target), plain = !source.is_neg() && !target.is_neg();
  if (!same && !(from && to && plain)) return std::nullopt;
  CopyLayout layout(target, source);
  if (!same) return prepare_copy(layout.sizes(), layout.target(*to), layout.source(*from));
  const Words words(target);
  if (words.count != 1)
    layout.add_innermost(static_cast<int64_t>(words.count), static_cast<int64_t>(words.bytes));
  return prepare_copy(layout.sizes(), layout.target(words.type()), layout.source(words.type()));
}

/// Keeps host memory until the work that `stream` has by now is done.
void keep(const Tensor& tensor, Stream& stream) {
  if (!on_npu(tensor))
    stream.launch(anynpu::Lane::kShort, [kept = tensor.storage()] {}, anynpu::Writes::nothing());
}

}  // namespace

void enqueue_copy(const Tensor& source, const Tensor& target, Stream& stream) {
  copy_counter().count_native();
  check_memory(source);
  check_memory(target);
  if (same_layout(source, target)) {
    const auto bytes = static_cast<size_t>(target.numel() * target.itemsize());
    npu_call([&] {
      anynpu::copy_async(target.mutable_data_ptr(), source.const_data_ptr(), bytes, stream);
      keep(on_npu(source) ? target : source, stream);
    });
    return;
  }
  const anynpu::TaskLabel label("copy", anynpu::TaskKind::kCopy, target.nbytes());
  if (auto kernel = npu_call([&] { return kernel_of_copy(source, target); })) {
    launch_kernel(stream, std::move(*kernel));
    npu_call([&] { keep(on_npu(source) ? target : source, stream); });
    return;
  }
  void* const written[] = {target.mutable_data_ptr()};
  launch_kernel(stream, anynpu::lane_for(kCopyWork * (bytes_of(source) + bytes_of(target))),
                anynpu::Writes(written),
                [to = kernel_view(target, true), from = kernel_view(source, false)] { to.copy_(from); });
}

namespace {

Tensor& copy_(Tensor& target, const Tensor& self, bool non_blocking);

bool is_converted_with_padding(const Tensor& from, const Tensor& to) {
  return from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point());
}

/// A copy to or from tensors in formats: as one of plain tensors, or of their blocks.
void copy_formats(const Tensor& target, const Tensor& source, bool non_blocking) {
  if (!is_whole(target)) {
    if (on_npu(target)) make_plain(target, copy_counter());
    Tensor to = target;
    copy_(to, on_npu(source) ? plain_of(source, copy_counter()) : source, non_blocking);
    return;
  }
  const bool alike = is_whole(source) && format_of(source) == format_of(target) &&
                     source.sizes() == target.sizes() && is_converted_with_padding(source, target);
  if (alike) {
    Tensor to = blocks_to_write(target);
    copy_(to, blocks_of(source), non_blocking);
    return;
  }
  Tensor plain = at::empty(target.sizes(), target.options());
  copy_(plain, source, non_blocking);
  copy_to_blocks(plain, target, copy_counter());
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
  if (is_formatted(target) || is_formatted(source)) {
    copy_formats(target, source, non_blocking);
    return target;
  }

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

/// In the format of `self`, where it has one and no strides are asked for.
Tensor clone(const Tensor& self, std::optional<c10::MemoryFormat> memory_format) {
  if (!is_whole(self) ||
      memory_format.value_or(c10::MemoryFormat::Preserve) == c10::MemoryFormat::ChannelsLast)
    return at::native::clone(self, memory_format);
  return from_blocks(*format_of(self), self.sizes(), at::native::clone(blocks_of(self), std::nullopt));
}

/// Copies at once: PyTorch's copy-on-write storages need memory whose context is its address, and ours is a
/// block.
Tensor lazy_clone(const Tensor& self) { return self.clone(); }

Scalar local_scalar_dense(const Tensor& self) {
  static OpCounter& counter = op_counter("aten::_local_scalar_dense");
  note_sync();
  const Tensor alias = borrowed_alias(self, false, counter);
  wait_for_stream(current_runtime_stream(self.device()));
  return at::native::_local_scalar_dense_cpu(alias);
}

/// True where `value` is one byte, repeated, in the type of `tensor`; sets `byte`.
bool repeats_one_byte(const Tensor& value, uint8_t* byte) {
  const auto* bytes = static_cast<const uint8_t*>(value.const_data_ptr());
  *byte = bytes[0];
  return std::all_of(bytes, bytes + value.itemsize(), [&](uint8_t other) { return other == bytes[0]; });
}

/// Of a type of integers.
int64_t integer_at(const std::byte* address, DType dtype) {
  return anynpu::tile::visit(dtype, [&]<class T>(std::type_identity<T>) -> int64_t {
    T integer = {};
    std::memcpy(&integer, address, sizeof(T));
    if constexpr (std::is_integral_v<T>) return int64_t{integer};
    return 0;
  });
}

/// Writes the bits of the first element of `value`, of the same type on the host, into every element.
std::vector<anynpu::ops::Launch> kernels_of_fill(const Tensor& self, const Tensor& value) {
  const Words words(self);
  anynpu::ops::View view = view_of(self, words.type());
  for (size_t d = 0; d < view.sizes.size(); ++d) {
    if (view.strides[d] == 0) view.sizes[d] = 1;  // all of them are the one
    view.strides[d] *= static_cast<int64_t>(words.count);
  }
  const auto* const bits = static_cast<const std::byte*>(value.const_data_ptr());
  std::vector<anynpu::ops::Launch> launches;
  for (size_t word = 0; word < words.count; ++word) {
    const anynpu::ops::Iteration iteration({&view, 1});
    const Operand number = {.dtype = words.type(),
                            .number = integer_at(bits + word * words.bytes, words.type())};
    launches.push_back(prepare_copy(iteration.sizes(), iteration.operands()[0], number));
    view.data = static_cast<std::byte*>(view.data) + words.bytes;
  }
  return launches;
}

/// Writes the first element of `value`, of the same type on the host, into every element.
Tensor& fill(Tensor& self, Tensor value) {
  static OpCounter& counter = op_counter("aten::fill_");
  if (self.numel() == 0) return self;
  if (is_whole(self)) {
    Tensor blocks = blocks_to_write(self);
    fill(blocks, std::move(value));
    return self;
  }
  make_plain(self, counter);
  counter.count_native();
  if (self.is_conj()) value = value.conj_physical();
  if (self.is_neg()) value = value.neg();
  Stream& stream = current_runtime_stream(self.device());
  uint8_t byte = 0;
  if (self.is_non_overlapping_and_dense() && repeats_one_byte(value, &byte)) {
    npu_call([&] { anynpu::fill_async(self.mutable_data_ptr(), byte, self.nbytes(), stream); });
  } else {
    const anynpu::TaskLabel label("fill", anynpu::TaskKind::kFill, self.nbytes());
    for (anynpu::ops::Launch& launch : npu_call([&] { return kernels_of_fill(self, value); }))
      launch_kernel(stream, std::move(launch));
  }
  return self;
}

Tensor& fill_scalar_(Tensor& self, const Scalar& value) {
  // Raises here, and not in the stream, where the type cannot hold the value. PyTorch has other rules for one
  // element than for more.
  return fill(self,
              at::full({self.numel() == 1 ? 1 : 2}, value, at::device(at::kCPU).dtype(self.scalar_type())));
}

/// By a tensor without dimensions, which is converted as copies are.
Tensor& fill_tensor_(Tensor& self, const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ",
              value.dim(), " dimensions.");
  at::assert_no_internal_overlap(self);
  if (value.device().is_cpu())
    return fill(self, at::empty({}, value.options().dtype(self.scalar_type())).copy_(value));
  return self.copy_(self.is_alias_of(value) ? value.clone() : value);
}

Tensor& zero_(Tensor& self) { return fill_scalar_(self, 0); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_foreach_copy_", at::native::foreach_tensor_copy_list_kernel_slow_);  // also between devices
  m.impl("_lazy_clone", lazy_clone);
  m.impl("clone", clone);
  m.impl("_local_scalar_dense", local_scalar_dense);
  add_whole(m, "copy_", {"Copy"}, copy_);
  add_whole(m, "fill_.Scalar", {"Copy"}, fill_scalar_);
  add_whole(m, "fill_.Tensor", {"Copy"}, fill_tensor_);
  m.impl("zero_", zero_);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) { m.impl("copy_", copy_); }

}  // namespace
}  // namespace torch_npu
