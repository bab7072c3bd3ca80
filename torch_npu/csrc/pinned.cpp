#include "torch_npu/csrc/pinned.h"

#include <cstring>

#include "runtime/memory.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/guard.h"

namespace torch_npu {
namespace {

using Recorded = std::shared_ptr<anynpu::Recording>;

/// PyTorch's cache of host blocks over the runtime's pinned memory.
struct PinnedCache final : at::CachingHostAllocatorImpl<c10::Stream, Recorded> {
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  void allocate_host_memory(size_t size, void** address) override {
    *address = npu_call([&] { return anynpu::allocate_pinned(size); });
  }

  void free_block(at::HostBlock<c10::Stream>* block) override { anynpu::free_pinned(block->ptr_); }

  void record_stream(std::optional<std::vector<Recorded>>& points, c10::Stream stream) override {
    points->push_back(npu_call([&] { return runtime_stream(stream)->record(); }));
  }

  bool query_event(Recorded& point) override { return point->done(); }

  c10::Stream get_current_stream() const override { return current_stream(current_device()); }

  bool stream_is_capturing(c10::Stream) const override { return false; }
};

void free_pinned_block(void* context);
using PinnedAllocator = at::CachingHostAllocatorInterface<PinnedCache, free_pinned_block>;

PinnedAllocator& instance() {
  static auto* allocator = new PinnedAllocator;  // tensors outlive every static destructor
  return *allocator;
}

void free_pinned_block(void* context) { instance().free(context); }

}  // namespace

at::HostAllocator* pinned_allocator() { return &instance(); }

bool is_pinned(const void* address) { return address != nullptr && anynpu::find_pinned(address) != nullptr; }

REGISTER_HOST_ALLOCATOR(at::DeviceType::PrivateUse1, pinned_allocator())

}  // namespace torch_npu
