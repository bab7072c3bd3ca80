#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "runtime/block_pool.h"

namespace torch_npu {

/// Device memory for tensors. A DataPtr of it has the device npu:i, and as its context the anynpu::Block that it
/// owns (null for 0 bytes). allocate() takes it for the current stream of the current device.
c10::DeviceAllocator* npu_allocator();

/// As allocate(), for a device that need not be the current one.
c10::DataPtr allocate_on(c10::DeviceIndex device, size_t bytes);

/// True when `data` was made by npu_allocator() (or a wrapper kept its deleter), so that its context is a block.
bool owns_block(const c10::DataPtr& data);

/// True for every address inside the memory of a started device. Takes no lock.
bool is_arena(const void* address);

}  // namespace torch_npu
