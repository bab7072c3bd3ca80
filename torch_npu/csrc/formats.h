#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "torch_npu/csrc/counters.h"

namespace torch_npu {

/// How the memory of a storage can lie beside by strides: each dimension of `split` is one of blocks, as many
/// as have all of it, and one of kBlock elements; then dimensions are permuted. What the last blocks have
/// beyond the tensor is padding, and may hold anything.
///
/// A tensor whose storage is in such a format looks like any contiguous tensor: sizes, strides and the bytes
/// of its storage are those of the plain layout. Its storage holds no address that can be read. It holds two
/// plain storages, one of blocks and, once it was read as plain memory, one with the elements as strides say.
/// Both are valid until it is written: in blocks, which drops the plain one, or as plain memory, by which the
/// storage becomes a plain one. Reading from several threads and streams is as safe as with any tensor;
/// whatever asks for an address to write to, in C++ or by data_ptr() in Python, makes the storage plain
/// (StorageImpl's materializer), and counts as writing.
struct Format {
  static constexpr int64_t kBlock = 16;

  int64_t number;  ///< as aclFormat has it
  std::string_view name;
  int64_t least_dims, most_dims;
  c10::SmallVector<int64_t, 2> split;  ///< from the end on where negative
  c10::SmallVector<int64_t, 8> order;  ///< of the dimensions after they are split; those before are in front

  bool takes(int64_t dims) const { return least_dims <= dims && dims <= most_dims; }
  /// The sizes of the blocks of a tensor of those sizes.
  std::vector<int64_t> sizes_of_blocks(at::IntArrayRef sizes) const;
};

/// Those whose memory is in blocks.
std::span<const Format> formats();
extern const Format& kNC1HWC0;

/// Whether operators may give results in a format where no operand is in one: the setting
/// torch.npu.config.allow_internal_format, of all threads.
bool are_formats_allowed();
void allow_formats(bool allowed);

/// The format of a storage; null: plain.
const Format* format_of(const c10::StorageImpl& storage);
/// Of a tensor's; null where it has none.
const Format* format_of(const at::Tensor& tensor);

/// Whether a storage is in a format. One load where it is not.
inline bool is_formatted(const c10::StorageImpl& storage) {
  return storage.has_materializer() && format_of(storage) != nullptr;
}
inline bool is_formatted(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         is_formatted(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

/// Whether blocks_of() has something for it: it is formatted, and all of its storage, as that was made.
bool is_whole(const at::Tensor& tensor);
/// The blocks of a whole tensor, as a plain tensor of its type and of the sizes that the format gives it.
at::Tensor blocks_of(const at::Tensor& whole);
/// The same, to write to: what its storage holds as plain memory is dropped.
at::Tensor blocks_to_write(const at::Tensor& whole);
/// The tensor of those sizes whose blocks are these: a contiguous tensor that is all of its storage.
at::Tensor from_blocks(const Format& format, at::IntArrayRef sizes, const at::Tensor& blocks);
at::Tensor empty_in_format(const Format& format, at::IntArrayRef sizes, const at::TensorOptions& options);

/// A new tensor with the elements of `tensor` in that format.
at::Tensor cast_to(const Format& format, const at::Tensor& tensor, OpCounter& counter);

/// Copies a tensor of the same sizes and type, contiguous and all of its storage, into a whole one.
void copy_to_blocks(const at::Tensor& plain, const at::Tensor& whole, OpCounter& counter);
/// Puts the storage of `tensor`, which is all of it and has memory of its own, into that format, for all
/// tensors that share it.
void cast_storage_to(const Format& format, const at::Tensor& tensor, OpCounter& counter);

/// To read: `tensor` itself where its storage is plain; else the same geometry over what that holds as plain
/// memory. Conversions are enqueued on the current stream, and counted for the operator.
at::Tensor plain_of(const at::Tensor& tensor, OpCounter& counter);
/// The address to read a storage at.
const void* plain_data(const c10::StorageImpl& storage, OpCounter& counter);
/// Makes a storage a plain one, so that it can be written to.
void make_plain(c10::StorageImpl& storage, OpCounter& counter);
void make_plain(const at::Tensor& tensor, OpCounter& counter);

/// Marks what `data` owns, which is that of a storage in a format, as used on a stream; false for any other.
bool record_stream_of_format(const c10::DataPtr& data, const c10::Stream& stream);

}  // namespace torch_npu
