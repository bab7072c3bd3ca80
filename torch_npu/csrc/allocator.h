#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>

#include "runtime/block_pool.h"

namespace torch_npu {

/// Device memory for tensors. A DataPtr of it has the device npu:i, and as its context the anynpu::Block that
/// it owns (null for 0 bytes). allocate() takes it for the current stream of the current device.
c10::DeviceAllocator* npu_allocator();

/// As allocate(), for a device that need not be the current one.
c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes);

/// What the calling thread's allocations are made under: the group of the pool that torch.npu.use_mem_pool
/// chose for the device, and the thread's stack where the memory history keeps it.
struct AllocationContext {
  uint64_t group;
  anynpu::PoolNote note;
};
AllocationContext allocation_context(c10::DeviceIndex device);
/// Makes `group` (0: none) the one that the calling thread allocates in on `device`; gives the one before.
uint64_t exchange_group(c10::DeviceIndex device, uint64_t group);

/// A block of the device's pool, and back. What allocates and frees for PyTorch does so through these two.
anynpu::Block* allocate_block(c10::DeviceIndex device, size_t bytes, uint64_t stream,
                              const AllocationContext& context);
void free_block(anynpu::Block* block);

/// The DataPtr that owns `block`, of a pool of `device`, as npu_allocator() makes it.
c10::DataPtr own_block(anynpu::Block* block, c10::DeviceIndex device);

/// True when `data` is such a DataPtr, so that its context is a block or null.
bool owns_block(const c10::DataPtr& data);

/// The block that `data` owns, also where another library wrapped the DataPtr; null for memory of no pool.
anynpu::Block* block_of(const c10::DataPtr& data);

/// True for every address inside the memory of a started device. Takes no lock.
bool is_arena(const void* address);

/// Makes `storage`, of device npu, `bytes` long: keeps what fits of its content, and gives its memory back
/// when `bytes` is 0. The copy is enqueued on the current stream of the storage's device.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

}  // namespace torch_npu
