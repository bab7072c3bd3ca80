#include "torch_npu/csrc/sharing.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "runtime/device.h"
#include "runtime/shared_event.h"
#include "runtime/sharing.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

using anynpu::BorrowedMemory;
using anynpu::HandledEvent;
using c10::StorageImpl;

constexpr size_t kEventHandleSize = 64;

/// The storages over borrowed memory, by address.
struct Borrowed {
  std::mutex mutex;
  std::unordered_map<void*, c10::weak_intrusive_ptr<StorageImpl>> storages;
};
Borrowed& borrowed() {
  static auto* made = new Borrowed;  // tensors outlive every static destructor
  return *made;
}

c10::DataPtr own_borrowed(std::unique_ptr<BorrowedMemory> memory, int device) {
  void* address = memory->address();
  return {address, memory.release(), [](void* context) { delete static_cast<BorrowedMemory*>(context); },
          c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device))};
}

/// Waits for what all streams have to do now, and leaves their errors to them.
void wait_for_all_work() {
  const auto done = std::make_shared<anynpu::Recording>();
  npu_call([&] { anynpu::Device::after_work([done] { done->complete(nullptr); }); });
  wait_until([&](anynpu::Duration limit) { return done->wait(limit); });
}

}  // namespace

std::string lend_storage(const c10::Storage& storage) {
  static OpCounter& counter = op_counter("lend_storage");
  if (is_formatted(*storage.unsafeGetStorageImpl())) make_plain(*storage.unsafeGetStorageImpl(), counter);
  anynpu::Block* const block = block_of(storage.data_ptr());
  TORCH_CHECK(block != nullptr,
              "an npu tensor cannot be sent to another process where it was received from one, or another "
              "library gave its memory; send its clone()");
  wait_for_all_work();
  return npu_call([&] { return anynpu::lend(block); });
}

c10::Storage borrow_storage(const std::string& key, int device, size_t bytes) {
  auto memory = npu_call([&] { return std::make_unique<BorrowedMemory>(key, device); });
  TORCH_CHECK(bytes <= memory->size(), "a tensor that another process sent has a storage of ", bytes,
              " bytes, but its memory has ", memory->size());
  std::lock_guard lock(borrowed().mutex);
  auto& storages = borrowed().storages;
  std::erase_if(storages, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = storages.find(memory->address()); found != storages.end())
    if (auto known = found->second.lock(); known != nullptr && known->nbytes() == bytes)
      return c10::Storage(std::move(known));
  void* address = memory->address();
  auto made = c10::make_intrusive<StorageImpl>(StorageImpl::use_byte_size_t(), bytes,
                                               own_borrowed(std::move(memory), device), nullptr,
                                               /*resizable=*/false);
  storages.insert_or_assign(address, c10::weak_intrusive_ptr<StorageImpl>(made));
  return c10::Storage(std::move(made));
}

void collect_lent_memory() {
  // What was dropped here just now may still wait to be given back.
  npu_call(
      [] { wait_until([](anynpu::Duration limit) { return anynpu::Device::wait_for_after_work(limit); }); });
  anynpu::Exports::instance().settle();
  for (c10::DeviceIndex device = 0; device < device_count(); ++device)
    if (is_started(device)) npu_call([&] { anynpu::Device::get(device).pool().collect(); });
}

std::shared_ptr<HandledEvent> new_shared_event() {
  return npu_call([] { return std::make_shared<HandledEvent>(anynpu::SharedEvent::create()); });
}

std::shared_ptr<HandledEvent> open_shared_event(const std::string& handle) {
  TORCH_CHECK_TYPE(handle.size() == kEventHandleSize, "Event.from_ipc_handle: handle has ", handle.size(),
                   " bytes; what Event.ipc_handle() gave is accepted, which has ", kEventHandleSize);
  return npu_call([&] {
    Unblocked unblocked;
    return std::make_shared<HandledEvent>(anynpu::SharedEvent::import(handle));
  });
}

std::string event_ipc_handle(const c10::Event& event) {
  return npu_call([&] {
    const void* const id = event.eventId();
    const auto handled = id != nullptr ? anynpu::object_of<HandledEvent>(id, "event") : nullptr;
    TORCH_CHECK(
        handled != nullptr && handled->event.shared() != nullptr,
        "Event.ipc_handle: the event was made without interprocess=True, so that no other process can "
        "open it");
    return handled->event.shared()->export_key();
  });
}

}  // namespace torch_npu
