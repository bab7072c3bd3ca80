#include "torch_npu/csrc/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/device.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/errors.h"

namespace torch_npu {
namespace {

using anynpu::Block;
using anynpu::BlockPool;

thread_local ArenaScope* active_scope = nullptr;

}  // namespace

struct CpuAllocator final : c10::Allocator {
  c10::Allocator* const host = c10::GetCPUAllocator();
  const c10::DeleterFnPtr host_deleter = host->raw_deleter();

  c10::DataPtr allocate(size_t bytes) override {
    if (active_scope != nullptr) return active_scope->allocate(bytes);
    c10::DataPtr data = host->allocate(bytes);
    if (host_deleter != nullptr) (void)data.compare_exchange_deleter(host_deleter, &CpuAllocator::free);
    return data;
  }

  /// The allocator below defines whether raw allocation is possible at all.
  c10::DeleterFnPtr raw_deleter() const override {
    return host_deleter == nullptr ? nullptr : &CpuAllocator::free;
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    host->copy_data(to, from, bytes);
  }

  static CpuAllocator& instance() {
    static auto* allocator = new CpuAllocator;
    return *allocator;
  }

  static void free(void* address) {
    if (!is_arena(address)) {
      instance().host_deleter(address);
    } else if (Block* block = take_block(address)) {
      free_block(block);
    }
  }

  /// The block at `address`, no longer known to the thread's scope.
  static Block* take_block(void* address) {
    Block* block = active_scope == nullptr ? nullptr : active_scope->release(address);
    return block != nullptr ? block : anynpu::Device::of(address)->pool().find(address);
  }
};

c10::Allocator* cpu_allocator() { return &CpuAllocator::instance(); }

void install_cpu_allocator() { c10::SetCPUAllocator(cpu_allocator(), UINT8_MAX); }

ArenaScope::Entry::Entry(ArenaScope& scope) : outer_(std::exchange(active_scope, &scope)) {}
ArenaScope::Entry::~Entry() { active_scope = outer_; }

Block* ArenaScope::new_block(size_t bytes) {
  return allocate_block(device().index(), bytes, stream_.id(), context_);
}

c10::DataPtr ArenaScope::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &CpuAllocator::free, c10::DeviceType::CPU};
  Block* block = new_block(bytes);
  blocks_.push_back(block);
  void* address = BlockPool::address(block);
  return {address, address, &CpuAllocator::free, c10::DeviceType::CPU};
}

/// The block at `address` if this scope gave it out; the newest goes first, as kernels free in reverse order.
Block* ArenaScope::release(void* address) {
  const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                  [&](const Block* block) { return BlockPool::address(block) == address; });
  if (found == blocks_.rend()) return nullptr;
  Block* block = *found;
  blocks_.erase(std::prev(found.base()));
  return block;
}

bool ArenaScope::holds(const c10::StorageImpl& storage) const {
  const anynpu::Device* device = anynpu::Device::of(storage.data());
  return device != nullptr && device->index() == stream_.device() &&
         storage.data_ptr().get_deleter() == &CpuAllocator::free;
}

c10::DataPtr ArenaScope::take(c10::StorageImpl& storage) {
  auto& device = npu_call([&]() -> anynpu::Device& { return anynpu::Device::get(stream_.device()); });
  Block* block = nullptr;
  if (holds(storage)) {
    void* address = storage._mutable_data_ptr_no_checks().release_context();
    block = release(address);
    if (block == nullptr) block = device.pool().find(address);
  } else if (storage.nbytes() != 0) {
    block = new_block(storage.nbytes());
    std::memcpy(BlockPool::address(block), storage.data(), storage.nbytes());
    count_fallback_copy(storage.nbytes());
  }
  return own_block(block, static_cast<c10::DeviceIndex>(device.index()));
}

}  // namespace torch_npu
