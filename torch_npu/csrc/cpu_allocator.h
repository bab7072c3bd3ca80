#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include "runtime/block_pool.h"
#include "runtime/stream.h"
#include "torch_npu/csrc/allocator.h"

namespace torch_npu {

/// The process's CPU allocator: forwards to the one that was there before, except on a thread inside an
/// ArenaScope, where it gives out device memory that is labelled as CPU memory. Installed once, at import,
/// and never swapped. A DataPtr of it has its address as its context, and cpu_allocator()'s raw deleter,
/// wherever the memory lies.
c10::Allocator* cpu_allocator();
void install_cpu_allocator();

/// Collects what one call of a CPU kernel allocates. Not thread-safe: used by the thread that runs the kernel
/// while an Entry lives, and by its owner otherwise.
class ArenaScope {
 public:
  /// Allocations are made as ones of the calling thread, whichever thread runs the kernel.
  explicit ArenaScope(anynpu::Stream& stream)
      : stream_(stream), context_(allocation_context(device().index())) {}
  ArenaScope(const ArenaScope&) = delete;

  c10::Device device() const {
    return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(stream_.device())};
  }

  /// Makes the calling thread's CPU allocations come from the pool of the stream's device, for use in the
  /// stream's order.
  class Entry {
   public:
    explicit Entry(ArenaScope& scope);
    ~Entry();
    Entry(const Entry&) = delete;

   private:
    ArenaScope* outer_;
  };

  /// True where the memory of `storage`, a CPU one, is the device's and not part of another storage's.
  bool holds(const c10::StorageImpl& storage) const;
  /// Memory of the npu device with the content of `storage`: its own where this scope holds it, which leaves
  /// the storage empty, else a copy (counted).
  c10::DataPtr take(c10::StorageImpl& storage);

 private:
  friend struct CpuAllocator;
  anynpu::Block* new_block(size_t bytes);
  c10::DataPtr allocate(size_t bytes);
  anynpu::Block* release(void* address);

  anynpu::Stream& stream_;
  const AllocationContext context_;
  c10::SmallVector<anynpu::Block*, 8> blocks_;  // given out and neither freed nor released, oldest first
};

}  // namespace torch_npu
