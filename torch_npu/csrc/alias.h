#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/operator_name.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <string>

#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/cpu_allocator.h"

namespace torch_npu {

/// The backend-level keys of `keys` (dense, sparse, quantized, nested, and the conjugate, negative and zero
/// bits), of the backend `backend`.
c10::DispatchKeySet with_backend(c10::DispatchKeySet keys, c10::BackendComponent backend);

/// Raises where a tensor has elements and its storage no memory, or memory in a format, which a kernel then
/// takes for plain memory.
void check_memory(const at::Tensor& npu);

/// A CPU tensor over the memory of the strided `npu`, which it does not own: for tasks on a stream, in whose
/// order the memory stays valid. Conversions of formats are counted for the operator.
at::Tensor borrowed_alias(const at::Tensor& npu, bool written, OpCounter& counter);

/// The CPU aliases of the npu tensors of one call, and the way back from them. An alias is a CPU tensor over
/// the same memory. Tensors that share a storage have aliases that share one, and a tensor that is several
/// arguments has one alias, as kernels ask whether an output is an input. Alias storages own a reference to
/// the npu storage, so no kernel can outlive its memory, and may be resized.
class AliasSet {
 public:
  /// Results are put into the memory of `scope`, under which the kernel runs. `op` is named in errors, and
  /// conversions of formats are counted by `counter`.
  AliasSet(ArenaScope& scope, const c10::OperatorName& op, OpCounter& counter)
      : scope_(scope), op_(op), counter_(counter) {}
  AliasSet(const AliasSet&) = delete;
  /// Memory of which somebody keeps an alias may be written unseen from then on (see ContentWatch).
  ~AliasSet();

  /// The alias of `npu`; `written` when the kernel may write to it or change its geometry.
  at::Tensor alias(at::Tensor npu, bool written);

  /// Of the memory of all aliases.
  c10::SmallVector<void*, 8> addresses() const;

  /// After the kernel: gives the npu tensors and storages what it made of their aliases.
  void adopt_changes();

  /// The npu tensor of a kernel's result: the original where it is an alias, a view where it shares a storage
  /// with one, else a tensor that takes over its memory, and its storage where no one else refers to `cpu`.
  at::Tensor to_npu(const at::Tensor& cpu);

 private:
  struct Pair {
    at::Tensor npu, cpu;
    bool written;
  };
  /// One of the two owns a reference to the other.
  struct StoragePair {
    c10::StorageImpl* npu;
    c10::Storage cpu;
  };

  const c10::Storage& alias_storage(const at::Tensor& npu, bool written);
  c10::Storage npu_storage(const at::Tensor& cpu);
  at::Tensor convert(const at::Tensor& from, c10::BackendComponent backend, bool written);
  at::Tensor convert_part(const at::Tensor& from, c10::BackendComponent backend, bool written);
  void adopt_geometry(const Pair& pair);

  ArenaScope& scope_;
  const c10::OperatorName& op_;
  OpCounter& counter_;
  c10::SmallVector<Pair, 8> tensors_;
  c10::SmallVector<StoragePair, 8> storages_;
};

}  // namespace torch_npu
