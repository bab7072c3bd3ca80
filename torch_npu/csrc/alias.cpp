#include "torch_npu/csrc/alias.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/DeviceGuard.h>

#include <optional>
#include <utility>

#include "runtime/content_watch.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/formats.h"

namespace torch_npu {
namespace {

using at::Tensor;
using c10::BackendComponent;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::Storage;
using c10::StorageImpl;
using c10::TensorImpl;

/// A pointer to `address`, inside `owner`, that owns a reference to it.
c10::DataPtr shared_memory(void* address, StorageImpl* owner, c10::Device device) {
  c10::raw::intrusive_ptr::incref(owner);
  return {address, owner,
          [](void* storage) { c10::raw::intrusive_ptr::decref(static_cast<StorageImpl*>(storage)); }, device};
}

Storage make_storage(size_t bytes, c10::DataPtr data, c10::Allocator* allocator, bool resizable) {
  return Storage(c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                  allocator, resizable));
}

/// The address behind `npu`, of plain memory.
void* device_address(const Tensor& npu, bool written, OpCounter& counter) {
  StorageImpl* storage = npu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  const c10::DeviceGuard guard(npu.device());
  if (is_formatted(*storage)) {
    if (!written) return const_cast<void*>(plain_data(*storage, counter));
    make_plain(*storage, counter);
  }
  check_memory(npu);
  return written ? storage->mutable_data() : const_cast<void*>(storage->data());
}

/// A tensor like `from` in all but its storage and backend.
Tensor over_storage(const Tensor& from, Storage storage, DispatchKeySet keys) {
  const TensorImpl& source = *from.unsafeGetTensorImpl();
  Tensor to = from.is_quantized()
                  ? at::detail::make_tensor<at::QTensorImpl>(std::move(storage), keys, source.dtype(),
                                                             at::get_qtensorimpl(from)->quantizer())
                  : at::detail::make_tensor<TensorImpl>(std::move(storage), keys, source.dtype());
  TensorImpl& target = *to.unsafeGetTensorImpl();
  target.set_sizes_and_strides(source.sizes(), source.strides(), source.storage_offset());
  if (source.is_wrapped_number()) target.set_wrapped_number(true);
  return to;
}

}  // namespace

void check_memory(const Tensor& npu) {
  const bool empty = npu.unsafeGetTensorImpl()->unsafe_storage().nbytes() == 0;
  TORCH_CHECK(!empty || npu.numel() == 0 || npu._is_zerotensor(), "The storage of a tensor of shape ",
              npu.sizes(), " on ", npu.device(), " has 0 bytes: its memory was given back by resize_(0)");
  TORCH_INTERNAL_ASSERT(!is_formatted(npu), "a kernel that takes plain memory was given a tensor of shape ",
                        npu.sizes(), " in format ", format_of(npu)->name);
}

DispatchKeySet with_backend(DispatchKeySet keys, BackendComponent backend) {
  constexpr DispatchKeySet kKept({DispatchKey::Dense, DispatchKey::Sparse, DispatchKey::SparseCsr,
                                  DispatchKey::Quantized, DispatchKey::NestedTensor,
                                  DispatchKey::AutogradNestedTensor, DispatchKey::Conjugate,
                                  DispatchKey::Negative, DispatchKey::ZeroTensor});
  constexpr uint64_t kBackends = c10::full_backend_mask;
  const uint64_t kept = keys.raw_repr() & kKept.raw_repr() & ~kBackends;
  return DispatchKeySet(DispatchKeySet::RAW, kept | DispatchKeySet(backend).raw_repr());
}

Tensor borrowed_alias(const Tensor& npu, bool written, OpCounter& counter) {
  StorageImpl* storage = npu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  c10::DataPtr data(device_address(npu, written, counter), c10::DeviceType::CPU);
  return over_storage(npu, make_storage(storage->nbytes(), std::move(data), nullptr, /*resizable=*/false),
                      with_backend(npu.key_set(), BackendComponent::CPUBit));
}

// [docs:alias]
/// The CPU storage over the same memory as `npu`'s, one for each storage of the call.
const Storage& AliasSet::alias_storage(const Tensor& npu, bool written) {
  void* address = device_address(npu, written, counter_);
  StorageImpl* storage = npu.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  for (const StoragePair& pair : storages_)
    if (pair.npu == storage) return pair.cpu;
  storages_.push_back({storage, make_storage(storage->nbytes(), shared_memory(address, storage, c10::kCPU),
                                             cpu_allocator(), storage->resizable())});
  return storages_.back().cpu;
}
// [/docs]

/// The npu storage for a kernel's result: the one that its storage is an alias of, else one over the same
/// memory. Where the result is the only owner of its storage, that becomes the npu storage; where the
/// kernel's library keeps it too, the npu storage shares its memory.
Storage AliasSet::npu_storage(const Tensor& cpu) {
  const Storage& storage = cpu.unsafeGetTensorImpl()->unsafe_storage();
  StorageImpl* source = storage.unsafeGetStorageImpl();
  for (const StoragePair& pair : storages_)
    if (pair.cpu.unsafeGetStorageImpl() == source)
      return Storage(c10::intrusive_ptr<StorageImpl>::reclaim_copy(pair.npu));
  if (cpu.use_count() == 1 && storage.use_count() == 1) {
    source->set_data_ptr_noswap(scope_.take(*source));
    source->set_allocator(npu_allocator());
    return storage;
  }
  c10::DataPtr data = scope_.holds(*source) ? shared_memory(source->mutable_data(), source, scope_.device())
                                            : scope_.take(*source);
  Storage npu = make_storage(source->nbytes(), std::move(data), npu_allocator(), source->resizable());
  storages_.push_back({npu.unsafeGetStorageImpl(), storage});
  return npu;
}

/// The tensor like `from`, which is of the other backend, on `backend`.
Tensor AliasSet::convert(const Tensor& from, BackendComponent backend, bool written) {
  const bool to_cpu = backend == BackendComponent::CPUBit;
  const DispatchKeySet keys = with_backend(from.key_set(), backend);
  const auto part = [&](const Tensor& tensor) { return convert_part(tensor, backend, written); };
  const auto storage = [&] { return to_cpu ? alias_storage(from, written) : npu_storage(from); };
  if (from.is_nested()) {
    const auto* nested = at::native::get_nested_tensor_impl(from);
    return at::detail::make_tensor<at::native::NestedTensorImpl>(
        storage(), keys, from.dtype(), nested->get_nested_sizes(), nested->get_nested_strides(),
        nested->get_storage_offsets());
  }
  switch (from.layout()) {
    case c10::kStrided:
      return over_storage(from, storage(), keys);
    case c10::kSparse: {
      const auto* source = at::sparse::get_sparse_impl(from);
      // A sparse tensor is born on the current device.
      const c10::OptionalDeviceGuard guard(to_cpu ? std::nullopt : std::optional(scope_.device()));
      Tensor to = at::detail::make_tensor<at::SparseTensorImpl>(keys, from.dtype());
      auto* target = at::sparse::get_sparse_impl(to);
      target->raw_resize_(source->sparse_dim(), source->dense_dim(), from.sizes());
      target->set_indices_and_values_unsafe(part(source->indices()), part(source->values()));
      target->set_coalesced(source->coalesced());
      return to;
    }
    case c10::kSparseCsr:
    case c10::kSparseCsc:
    case c10::kSparseBsr:
    case c10::kSparseBsc: {
      const auto* source = static_cast<at::SparseCsrTensorImpl*>(from.unsafeGetTensorImpl());
      const Tensor values = part(source->values());
      Tensor to = at::detail::make_tensor<at::SparseCsrTensorImpl>(keys, values.device(), from.layout(),
                                                                   from.dtype());
      static_cast<at::SparseCsrTensorImpl*>(to.unsafeGetTensorImpl())
          ->set_member_tensors(part(source->compressed_indices()), part(source->plain_indices()), values,
                               from.sizes());
      return to;
    }
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, op_, ": tensors of layout ", from.layout(),
                                  " do not exist on device npu");
  }
}

/// A member of a sparse tensor, which converts like an argument or a result of its own.
Tensor AliasSet::convert_part(const Tensor& from, BackendComponent backend, bool written) {
  return backend == BackendComponent::CPUBit ? alias(from, written) : to_npu(from);
}

Tensor AliasSet::alias(Tensor npu, bool written) {
  for (Pair& pair : tensors_) {
    if (!pair.npu.is_same(npu)) continue;
    pair.written |= written;
    return pair.cpu;
  }
  Tensor cpu = convert(npu, BackendComponent::CPUBit, written);
  if (npu.requires_grad()) cpu.set_requires_grad(true);  // some kernels keep more for a backward then
  tensors_.push_back({std::move(npu), cpu, written});
  return cpu;
}

AliasSet::~AliasSet() {
  tensors_.clear();
  for (const StoragePair& pair : storages_)
    if (pair.cpu.use_count() > 1 && pair.cpu.nbytes() != 0)
      anynpu::ContentWatch::exclude_block(pair.cpu.data(), pair.cpu.nbytes());
}

c10::SmallVector<void*, 8> AliasSet::addresses() const {
  c10::SmallVector<void*, 8> all;
  for (const StoragePair& pair : storages_) all.push_back(const_cast<void*>(pair.cpu.data()));
  return all;
}

Tensor AliasSet::to_npu(const Tensor& cpu) {
  if (!cpu.defined()) return cpu;
  for (const Pair& pair : tensors_)
    if (pair.cpu.is_same(cpu)) return pair.npu;
  return convert(cpu, BackendComponent::PrivateUse1Bit, false);
}

void AliasSet::adopt_changes() {
  for (const StoragePair& pair : storages_) {
    StorageImpl& cpu = *pair.cpu.unsafeGetStorageImpl();
    if (cpu._mutable_data_ptr_no_checks().get_context() == pair.npu) continue;  // not resized
    pair.npu->set_data_ptr_noswap(scope_.take(cpu));
    pair.npu->set_nbytes(cpu.nbytes());
  }
  // By index: adopting a sparse tensor may add pairs, of which none is written to.
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (tensors_[i].written) adopt_geometry(Pair(tensors_[i]));
}

void AliasSet::adopt_geometry(const Pair& pair) {
  const Tensor& cpu = pair.cpu;
  TensorImpl& npu = *pair.npu.unsafeGetTensorImpl();
  if (cpu.is_nested()) return;  // no operator changes the sizes of a nested tensor
  if (cpu.layout() == c10::kSparse) {
    const auto* source = at::sparse::get_sparse_impl(cpu);
    auto* target = at::sparse::get_sparse_impl(pair.npu);
    target->raw_resize_(source->sparse_dim(), source->dense_dim(), cpu.sizes());
    target->set_indices_and_values_unsafe(to_npu(source->indices()), to_npu(source->values()));
    target->set_coalesced(source->coalesced());
  } else if (cpu.layout() != c10::kStrided) {
    const auto* source = static_cast<at::SparseCsrTensorImpl*>(cpu.unsafeGetTensorImpl());
    static_cast<at::SparseCsrTensorImpl&>(npu).set_member_tensors(to_npu(source->compressed_indices()),
                                                                  to_npu(source->plain_indices()),
                                                                  to_npu(source->values()), cpu.sizes());
  } else {
    const TensorImpl& now = *cpu.unsafeGetTensorImpl();
    Storage storage = npu_storage(cpu);
    if (storage.unsafeGetStorageImpl() != npu.unsafe_storage().unsafeGetStorageImpl())
      npu.set_storage_keep_dtype(std::move(storage));
    if (now.storage_offset() != npu.storage_offset() || now.sizes() != npu.sizes() ||
        now.strides() != npu.strides())
      npu.set_sizes_and_strides(now.sizes(), now.strides(), now.storage_offset());
  }
}

}  // namespace torch_npu
