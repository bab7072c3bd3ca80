#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_npu {

/// Host memory that asynchronous copies may use: caches freed blocks by power of two. An asynchronous copy
/// owns the storage that it uses, so memory is freed when both the user and the copies are done with it;
/// record_event serves libraries that enqueue work on a pinned pointer themselves.
at::HostAllocator* pinned_allocator();

/// True for every address inside memory of pinned_allocator(). Starts no device.
bool is_pinned(const void* address);

}  // namespace torch_npu
