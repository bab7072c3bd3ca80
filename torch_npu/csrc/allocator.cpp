#include "torch_npu/csrc/allocator.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "runtime/device.h"
#include "runtime/memory.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/memory_history.h"
#include "torch_npu/csrc/packed_weights.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

using anynpu::Block;
using anynpu::BlockPool;
using c10::CachingDeviceAllocator::DeviceStats;

void delete_block(void* context) { free_block(static_cast<Block*>(context)); }

BlockPool& pool_of(c10::DeviceIndex device) {
  return npu_call([&]() -> BlockPool& { return anynpu::Device::get(device).pool(); });
}

thread_local std::array<uint64_t, anynpu::kMostDevices> groups = {};

/// Tells PyTorch's profiler of a block that came, or went.
void report_to_profiler(const Block* block, bool allocated) {
  if (!c10::memoryProfilingEnabled()) [[likely]]
    return;
  const anynpu::MemoryStats stats = BlockPool::pool_of(block).stats();
  const auto bytes = static_cast<int64_t>(BlockPool::size(block));
  void* address = BlockPool::address(block);
  c10::reportMemoryUsageToProfiler(
      address, allocated ? bytes : -bytes,
      static_cast<size_t>(stats.allocated_bytes[anynpu::kAllMemory].current),
      static_cast<size_t>(stats.reserved_bytes[anynpu::kAllMemory].current),
      c10::Device(c10::DeviceType::PrivateUse1,
                  static_cast<c10::DeviceIndex>(anynpu::Device::of(address)->index())));
}

c10::CachingAllocator::Stat stat(const anynpu::MemoryCounter& counter) {
  return {counter.current, counter.peak, counter.allocated, counter.freed};
}

c10::CachingAllocator::StatArray stat_array(const anynpu::MemoryStats::PerKind& counters) {
  static_assert(static_cast<int>(c10::CachingAllocator::StatType::AGGREGATE) == anynpu::kAllMemory);
  static_assert(static_cast<int>(c10::CachingAllocator::StatType::SMALL_POOL) == anynpu::kSmallBlocks);
  static_assert(static_cast<int>(c10::CachingAllocator::StatType::LARGE_POOL) == anynpu::kLargeBlocks);
  c10::CachingAllocator::StatArray result;
  std::transform(counters.begin(), counters.end(), result.begin(), stat);
  return result;
}

struct NpuAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override { return allocate_on(current_device(), bytes); }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    npu_call([&] {
      anynpu::Stream& stream = anynpu::current_stream(current_device());
      anynpu::copy_async(to, from, bytes, stream);
      wait_for_stream(stream);
    });
  }

  bool initialized() override { return anynpu::Device::started() && !anynpu::Device::forked(); }

  void emptyCache(c10::MempoolId_t pool) override {
    TORCH_CHECK(pool.first == 0, "empty_cache: (", pool.first, ", ", pool.second,
                ") is not the id of a torch.npu.MemPool");
    if (initialized()) drop_packed_weights();
    for (c10::DeviceIndex index = 0; index < device_count(); ++index)
      if (is_started(index)) pool_of(index).release_unused(pool.second);
    if (initialized())
      npu_call([] {
        wait_until([](anynpu::Duration limit) { return anynpu::Device::wait_for_after_work(limit); });
      });
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    if (record_stream_of_format(data, stream)) return;
    if (Block* block = block_of(data)) BlockPool::pool_of(block).record_stream(block, runtime_stream(stream));
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    DeviceStats result;
    if (!is_started(device)) return result;
    const anynpu::MemoryStats stats = pool_of(device).stats();
    result.allocation = stat_array(stats.allocation);
    result.segment = stat_array(stats.segment);
    result.active = stat_array(stats.active);
    result.inactive_split = stat_array(stats.inactive_split);
    result.allocated_bytes = stat_array(stats.allocated_bytes);
    result.reserved_bytes = stat_array(stats.reserved_bytes);
    result.active_bytes = stat_array(stats.active_bytes);
    result.inactive_split_bytes = stat_array(stats.inactive_split_bytes);
    result.requested_bytes = stat_array(stats.requested_bytes);
    result.num_alloc_retries = stats.num_alloc_retries;
    result.num_ooms = stats.num_ooms;
    result.num_device_alloc = stats.num_device_alloc;
    result.num_device_free = stats.num_device_free;
    result.oversize_allocations = stat(stats.oversize_allocations);
    result.oversize_segments = stat(stats.oversize_segments);
    result.max_split_size = static_cast<int64_t>(BlockPool::settings().max_split_size);  // -1: no limit
    for (const auto& [group, counters] : stats.group_reserved_bytes)
      result.reserved_bytes_by_private_pools[{0, group}] = stat_array(counters);
    return result;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    if (is_started(device)) pool_of(device).reset_accumulated_stats();
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    if (is_started(device)) pool_of(device).reset_peak_stats();
  }

  /// All devices draw on one budget, so what one uses is free on none.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    check_device(device);
    return npu_call([] {
      const anynpu::MemoryBudget& budget = anynpu::MemoryBudget::instance();
      return std::pair(budget.total() - budget.committed(), budget.total());
    });
  }
};

void record_stream(at::Tensor& self, c10::Stream stream) {
  npu_allocator()->recordStream(self.storage().data_ptr(), stream);
}

}  // namespace

c10::DeviceAllocator* npu_allocator() {
  static auto* allocator = new NpuAllocator;  // tensors outlive every static destructor
  return allocator;
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, npu_allocator())

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("record_stream", record_stream); }

AllocationContext allocation_context(c10::DeviceIndex device) {
  return {groups.at(device), allocation_note()};
}

uint64_t exchange_group(c10::DeviceIndex device, uint64_t group) {
  check_device(device);
  return std::exchange(groups.at(device), group);
}

Block* allocate_block(c10::DeviceIndex device, size_t bytes, uint64_t stream,
                      const AllocationContext& context) {
  Block* block = npu_call([&] {
    return anynpu::Device::get(device).pool().allocate(bytes, stream, context.group, context.note);
  });
  if (block != nullptr) report_to_profiler(block, true);
  return block;
}

void free_block(Block* block) {
  if (block == nullptr) return;
  report_to_profiler(block, false);
  BlockPool::pool_of(block).free(block, free_note());
}

c10::DataPtr allocate_on(c10::DeviceIndex index, size_t bytes) {
  const uint64_t stream = npu_call([&] { return anynpu::current_stream(index).id(); });
  return own_block(allocate_block(index, bytes, stream, allocation_context(index)), index);
}

c10::DataPtr own_block(Block* block, c10::DeviceIndex index) {
  return {BlockPool::address(block), block, &delete_block, c10::Device(c10::DeviceType::PrivateUse1, index)};
}

bool owns_block(const c10::DataPtr& data) { return data.get_deleter() == &delete_block; }

Block* block_of(const c10::DataPtr& data) {
  if (owns_block(data)) return static_cast<Block*>(data.get_context());
  anynpu::Device* const device = anynpu::Device::of(data.get());
  return device == nullptr ? nullptr : device->pool().find(data.get());
}

bool is_arena(const void* address) { return anynpu::Device::of(address) != nullptr; }

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  TORCH_CHECK(bytes <= PTRDIFF_MAX, "resize_: ", static_cast<int64_t>(bytes),
              " is not a size that a storage can have: 0 to ", PTRDIFF_MAX, " bytes are accepted");
  static OpCounter& counter = op_counter("aten::resize_");
  const c10::DeviceIndex device = storage.device().index();
  if (is_formatted(storage)) make_plain(storage, counter);
  c10::DataPtr grown = allocate_on(device, bytes);
  if (const size_t kept = std::min(bytes, storage.nbytes()); kept != 0) {
    const c10::Stream stream = current_stream(device);
    npu_call([&] { anynpu::copy_async(grown.get(), storage.data(), kept, *runtime_stream(stream)); });
    if (owns_block(storage.data_ptr())) {
      npu_allocator()->recordStream(storage.data_ptr(), stream);
    } else {
      wait_for_stream(*runtime_stream(stream));
    }
  }
  storage.set_data_ptr_noswap(std::move(grown));
  storage.set_nbytes(bytes);
}

}  // namespace torch_npu
