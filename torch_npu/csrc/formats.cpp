#include "torch_npu/csrc/formats.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "runtime/memory.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/copy.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/kernel_call.h"

namespace torch_npu {
namespace {

using at::Tensor;
using c10::Storage;
using c10::StorageImpl;
using c10::TensorImpl;

using Numbers = c10::SmallVector<int64_t, 8>;
constexpr int64_t kBlock = Format::kBlock;
constexpr int64_t kMostDims = 64;

StorageImpl& storage_of(const Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

Storage new_storage(size_t bytes, c10::DeviceIndex device) {
  return Storage(c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), bytes,
                                                  allocate_on(device, bytes), npu_allocator(),
                                                  /*resizable=*/true));
}

/// A plain tensor of npu, below all that PyTorch does with tensors of users.
Tensor tensor_over(Storage storage, caffe2::TypeMeta type, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t offset = 0) {
  Tensor made = at::detail::make_tensor<TensorImpl>(std::move(storage),
                                                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

Numbers strides_of(at::IntArrayRef sizes) {
  Numbers strides(sizes.size(), 1);
  for (size_t d = sizes.size(); d-- > 1;) strides[d - 1] = strides[d] * std::max<int64_t>(sizes[d], 1);
  return strides;
}

int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// A dimension of a tensor, and where it is in a format's blocks.
struct Dimension {
  int64_t size;
  bool split;
};

/// How plain memory and blocks correspond.
class Mapping {
 public:
  Mapping(const Format& format, at::IntArrayRef sizes) {
    const auto dims = static_cast<int64_t>(sizes.size());
    std::vector<int64_t> split(format.split.begin(), format.split.end());
    for (int64_t& dim : split) dim += dim < 0 ? dims : 0;
    Numbers divided;  // sizes, with those of blocks and in blocks
    for (int64_t d = 0; d < dims; ++d) {
      const int64_t size = sizes[static_cast<size_t>(d)];
      const bool is_split = std::find(split.begin(), split.end(), d) != split.end();
      dims_.push_back({size, is_split});
      divided.push_back(is_split ? (size + kBlock - 1) / kBlock : size);
      if (is_split) divided.push_back(kBlock);
    }
    const size_t before = divided.size() - format.order.size();
    for (size_t i = 0; i < before; ++i) order_.push_back(static_cast<int64_t>(i));
    for (const int64_t place : format.order) order_.push_back(place + static_cast<int64_t>(before));
    for (const int64_t place : order_) sizes_.push_back(divided[static_cast<size_t>(place)]);
    const Numbers strides = strides_of(sizes_);
    strides_.resize(order_.size());
    for (size_t i = 0; i < order_.size(); ++i) strides_[static_cast<size_t>(order_[i])] = strides[i];
  }

  /// Of the blocks.
  const Numbers& sizes() const { return sizes_; }
  bool is_padded() const {
    return std::any_of(dims_.begin(), dims_.end(),
                       [](const Dimension& dim) { return dim.split && dim.size % kBlock != 0; });
  }

  /// Calls `copy` with pairs of a plain tensor and blocks that together have all elements: whole blocks, and
  /// what is left, of each dimension.
  template <class Copy>
  void for_each_part(const Storage& plain, const Storage& blocks, caffe2::TypeMeta type,
                     const Copy& copy) const {
    Numbers plain_sizes;
    for (const Dimension& dim : dims_) plain_sizes.push_back(dim.size);
    const Numbers plain_strides = strides_of(plain_sizes);
    const auto splits = std::count_if(dims_.begin(), dims_.end(), [](const auto& dim) { return dim.split; });
    for (int64_t part = 0; part < int64_t{1} << splits; ++part) {
      Numbers sizes, from, to;
      int64_t from_offset = 0, to_offset = 0;
      for (size_t d = 0, split = 0, divided = 0; d < dims_.size(); ++d) {
        const auto& [size, is_split] = dims_[d];
        from.push_back(plain_strides[d]);
        to.push_back(strides_[divided++]);
        if (!is_split) {
          sizes.push_back(size);
          continue;
        }
        const int64_t whole = size / kBlock;
        const bool rest = (part >> split++ & 1) != 0;
        if (rest) {
          from_offset += whole * kBlock * from.back();
          to_offset += whole * to.back();
        }
        sizes.push_back(rest ? 1 : whole);
        sizes.push_back(rest ? size % kBlock : kBlock);
        from.push_back(from.back());
        from[from.size() - 2] *= kBlock;
        to.push_back(strides_[divided++]);
      }
      if (product(sizes) != 0)
        copy(tensor_over(plain, type, sizes, from, from_offset),
             tensor_over(blocks, type, sizes, to, to_offset));
    }
  }

 private:
  c10::SmallVector<Dimension, 6> dims_;
  Numbers order_, sizes_, strides_;  // strides: before they are permuted
};

/// What a storage in a format owns: the context of its DataPtr.
class FormattedMemory {
 public:
  FormattedMemory(const Format& format, at::IntArrayRef sizes, const Tensor& blocks)
      : format_(format),
        type_(blocks.dtype()),
        sizes_(sizes.begin(), sizes.end()),
        home_(current_stream(blocks.device().index())),
        blocks_(blocks.storage()) {}

  const Format& format() const { return format_; }
  const Numbers& sizes() const { return sizes_; }
  caffe2::TypeMeta type() const { return type_; }
  const Storage& blocks() const { return blocks_; }

  /// The elements as plain memory, for the current stream.
  Storage plain(OpCounter& counter) {
    const auto bytes = static_cast<size_t>(product(sizes_)) * type_.itemsize();
    Storage room;
    if (std::lock_guard lock(mutex_); plain_) {
      wait_for_plain();
      return plain_;
    }
    room = new_storage(bytes, home_.device_index());  // without the lock: it may take the GIL
    std::lock_guard lock(mutex_);
    if (plain_) {
      wait_for_plain();
      return plain_;
    }
    counter.count_conversion();
    anynpu::Stream& stream = current_runtime_stream(home_.device());
    Mapping(format_, sizes_)
        .for_each_part(room, blocks_, type_, [&](const Tensor& elements, const Tensor& blocks) {
          enqueue_copy(blocks, elements, stream);
        });
    made_on_ = &stream;
    made_ = npu_call([&] { return stream.record(); });
    // Users order what they do with the tensor, and its end, against the stream that it came from.
    use_on(home_, room);
    return plain_ = std::move(room);
  }

  void drop_plain() {
    std::lock_guard lock(mutex_);
    if (!plain_) return;
    use_on_current(plain_);
    plain_ = Storage();
  }

  /// The memory of `plain`, which plain() gave, for a storage that takes this one's place.
  c10::DataPtr release(Storage plain) {
    std::lock_guard lock(mutex_);
    use_on_current(blocks_);
    plain_ = Storage();
    StorageImpl* owner = plain.unsafeGetStorageImpl();
    if (plain.use_count() == 1) return std::move(owner->_mutable_data_ptr_no_checks());
    void* address = owner->mutable_data();
    plain.unsafeReleaseStorageImpl();  // to what is returned
    return {address, owner,
            [](void* storage) { c10::raw::intrusive_ptr::decref(static_cast<StorageImpl*>(storage)); },
            home_.device()};
  }

  void record_stream(const c10::Stream& stream) {
    std::lock_guard lock(mutex_);
    for (const Storage& storage : {blocks_, plain_})
      if (storage) npu_allocator()->recordStream(storage.data_ptr(), stream);
  }

 private:
  void wait_for_plain() {
    anynpu::Stream& stream = current_runtime_stream(home_.device());
    if (&stream != made_on_) npu_call([&] { stream.wait(made_); });
  }
  void use_on(const c10::Stream& stream, const Storage& storage) const {
    if (current_stream(home_.device_index()) != home_)
      npu_allocator()->recordStream(storage.data_ptr(), stream);
  }
  void use_on_current(const Storage& storage) const { use_on(current_stream(home_.device_index()), storage); }

  const Format& format_;
  const caffe2::TypeMeta type_;
  const Numbers sizes_;
  const c10::Stream home_;  ///< of which the blocks are
  const Storage blocks_;
  std::mutex mutex_;  // of what follows
  Storage plain_;
  anynpu::Stream* made_on_ = nullptr;  // never dereferenced
  std::shared_ptr<anynpu::Recording> made_;
};

/// What a storage in a format has for an address. No process can map it, with whatever is added, so a read
/// that nobody converted for fails at once. It is not null, which PyTorch takes for a storage that was freed.
void* no_address() { return reinterpret_cast<void*>(uintptr_t{0xdead'0000'0000'0000}); }

void delete_formatted(void* context) { delete static_cast<FormattedMemory*>(context); }

FormattedMemory* memory_of(const c10::DataPtr& data) {
  return data.get_deleter() == &delete_formatted ? static_cast<FormattedMemory*>(data.get_context())
                                                 : nullptr;
}
FormattedMemory* memory_of(const StorageImpl& storage) { return memory_of(storage.data_ptr()); }

/// What StorageImpl calls where someone asks for an address to write to.
void materialize(StorageImpl* storage) {
  static OpCounter& counter = op_counter("data_ptr");
  make_plain(*storage, counter);
}

/// From `from`, which has no strides of its own, into blocks.
void copy_into(const Mapping& mapping, const Tensor& from, const Tensor& blocks) {
  anynpu::Stream& stream = current_runtime_stream(blocks.device());
  if (mapping.is_padded())
    npu_call([&] { anynpu::fill_async(blocks.mutable_data_ptr(), 0, blocks.nbytes(), stream); });
  mapping.for_each_part(
      from.storage(), blocks.storage(), blocks.dtype(),
      [&](const Tensor& elements, const Tensor& to) { enqueue_copy(elements, to, stream); });
}

Tensor empty_blocks(at::IntArrayRef sizes, caffe2::TypeMeta type, c10::DeviceIndex device) {
  const auto bytes = static_cast<size_t>(product(sizes)) * type.itemsize();
  return tensor_over(new_storage(bytes, device), type, sizes, strides_of(sizes));
}

}  // namespace

std::span<const Format> formats() {
  static const auto* const all = new std::array<Format, 5>{{
      {3, "NC1HWC0", 4, 4, {1}, {0, 1, 3, 4, 2}},
      {4, "FRACTAL_Z", 4, 4, {0, 1}, {2, 4, 5, 0, 1, 3}},
      {29, "FRACTAL_NZ", 2, kMostDims, {-2, -1}, {2, 0, 1, 3}},
      {32, "NDC1HWC0", 5, 5, {1}, {0, 3, 1, 4, 5, 2}},
      {33, "FRACTAL_Z_3D", 5, 5, {0, 1}, {4, 2, 5, 6, 0, 1, 3}},
  }};
  return *all;
}
const Format& kNC1HWC0 = formats()[0];

namespace {
std::atomic<bool> formats_are_allowed = false;
}
bool are_formats_allowed() { return formats_are_allowed.load(std::memory_order_relaxed); }
void allow_formats(bool allowed) { formats_are_allowed.store(allowed, std::memory_order_relaxed); }

std::vector<int64_t> Format::sizes_of_blocks(at::IntArrayRef sizes) const {
  const Mapping mapping(*this, sizes);
  return {mapping.sizes().begin(), mapping.sizes().end()};
}

const Format* format_of(const StorageImpl& storage) {
  const FormattedMemory* memory = memory_of(storage);
  return memory != nullptr ? &memory->format() : nullptr;
}
const Format* format_of(const Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() ? format_of(storage_of(tensor)) : nullptr;
}

bool is_whole(const Tensor& tensor) {
  if (!is_formatted(tensor)) return false;
  const FormattedMemory& memory = *memory_of(storage_of(tensor));
  return tensor.sizes() == at::IntArrayRef(memory.sizes()) && tensor.is_contiguous() &&
         tensor.storage_offset() == 0 && tensor.itemsize() == memory.type().itemsize() && !tensor.is_conj() &&
         !tensor.is_neg() && tensor.layout() == c10::kStrided && !tensor.is_quantized() &&
         !tensor.is_nested();
}

Tensor blocks_of(const Tensor& whole) {
  const FormattedMemory& memory = *memory_of(storage_of(whole));
  const Mapping mapping(memory.format(), memory.sizes());
  return tensor_over(memory.blocks(), whole.dtype(), mapping.sizes(), strides_of(mapping.sizes()));
}

Tensor blocks_to_write(const Tensor& whole) {
  memory_of(storage_of(whole))->drop_plain();
  return blocks_of(whole);
}

Tensor from_blocks(const Format& format, at::IntArrayRef sizes, const Tensor& blocks) {
  TORCH_INTERNAL_ASSERT(blocks.is_contiguous() && blocks.storage_offset() == 0 &&
                            blocks.sizes() == at::IntArrayRef(format.sizes_of_blocks(sizes)),
                        blocks.sizes(), " are not the blocks of a tensor of sizes ", sizes, " in ",
                        format.name);
  const auto bytes = static_cast<size_t>(product(sizes)) * blocks.itemsize();
  c10::DataPtr data(no_address(), new FormattedMemory(format, sizes, blocks), &delete_formatted,
                    blocks.device());
  Storage storage(c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                   npu_allocator(), /*resizable=*/true));
  storage.unsafeGetStorageImpl()->set_materializer(&materialize);
  return tensor_over(std::move(storage), blocks.dtype(), sizes, strides_of(sizes));
}

Tensor empty_in_format(const Format& format, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return from_blocks(format, sizes,
                     empty_blocks(format.sizes_of_blocks(sizes), options.dtype(), options.device().index()));
}

Tensor cast_to(const Format& format, const Tensor& tensor, OpCounter& counter) {
  const Tensor from = plain_of(tensor, counter);
  counter.count_conversion();
  const Mapping mapping(format, from.sizes());
  const Tensor blocks = empty_blocks(mapping.sizes(), from.dtype(), from.device().index());
  const bool plain = from.is_contiguous() && from.storage_offset() == 0 && !from.is_conj() && !from.is_neg();
  Tensor elements = from;
  if (!plain) {
    elements = empty_blocks(from.sizes(), from.dtype(), from.device().index());
    if (from.numel() != 0) enqueue_copy(from, elements, current_runtime_stream(from.device()));
  }
  copy_into(mapping, elements, blocks);
  return from_blocks(format, from.sizes(), blocks);
}

void copy_to_blocks(const Tensor& plain, const Tensor& whole, OpCounter& counter) {
  counter.count_conversion();
  copy_into(Mapping(*format_of(whole), whole.sizes()), plain, blocks_to_write(whole));
}

void cast_storage_to(const Format& format, const Tensor& tensor, OpCounter& counter) {
  StorageImpl& storage = storage_of(tensor);
  make_plain(storage, counter);
  const bool all = tensor.is_contiguous() && tensor.storage_offset() == 0 && !tensor.is_conj() &&
                   !tensor.is_neg() && storage.nbytes() == tensor.nbytes();
  TORCH_CHECK(
      all, "npu_format_cast_: a tensor of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
      " in a storage of ", storage.nbytes(), " bytes cannot be cast to ", format.name,
      " in place; one that is contiguous and all of its storage is accepted, others by npu_format_cast");
  TORCH_CHECK(
      owns_block(storage.data_ptr()),
      "npu_format_cast_: the memory of the tensor is not npu's own, as where another process or library "
      "gave it; npu_format_cast gives a tensor of its own");
  const Tensor made = cast_to(format, tensor, counter);
  const auto device = tensor.device().index();
  npu_allocator()->recordStream(storage.data_ptr(), current_stream(device));
  storage.set_data_ptr_noswap(std::move(storage_of(made)._mutable_data_ptr_no_checks()));
  storage.set_materializer(&materialize);
}

Tensor plain_of(const Tensor& tensor, OpCounter& counter) {
  if (!is_formatted(tensor)) return tensor;
  const c10::DeviceGuard guard(tensor.device());
  auto made = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                    /*allow_tensor_metadata_change=*/true);
  made->set_storage_keep_dtype(memory_of(storage_of(tensor))->plain(counter));
  return Tensor(std::move(made));
}

const void* plain_data(const StorageImpl& storage, OpCounter& counter) {
  FormattedMemory* memory = memory_of(storage);
  return memory == nullptr ? storage.data() : memory->plain(counter).data();
}

void make_plain(StorageImpl& storage, OpCounter& counter) {
  if (FormattedMemory* memory = memory_of(storage))
    storage.set_data_ptr_noswap(memory->release(memory->plain(counter)));
  storage.clear_materializer();
}
void make_plain(const Tensor& tensor, OpCounter& counter) {
  if (is_formatted(tensor)) make_plain(storage_of(tensor), counter);
}

bool record_stream_of_format(const c10::DataPtr& data, const c10::Stream& stream) {
  FormattedMemory* memory = memory_of(data);
  if (memory != nullptr) memory->record_stream(stream);
  return memory != nullptr;
}

}  // namespace torch_npu
