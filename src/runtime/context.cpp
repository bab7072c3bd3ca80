#include "runtime/context.h"

#include <array>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/thread_state.h"
#include "runtime/address_range.h"
#include "runtime/callbacks.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/running.h"
#include "runtime/sharing.h"

namespace anynpu {
namespace {

std::atomic<uint64_t> next_id = 1;

/// The context that the thread chose on that context's device; null or of another device: the default one.
struct Chosen {
  std::shared_ptr<Context> context;
};
std::shared_ptr<Context>& chosen() { return thread_state<Chosen>().context; }

/// The default context of a device, and what ends with it.
struct Default {
  std::mutex mutex;
  uint64_t uses = 0;
  bool released = false;  // by unuse_default(), until the next use
  std::shared_ptr<Context> context;
  std::set<void*> memory;
  std::map<void*, std::shared_ptr<AddressRange>> ranges;
  struct Imported {
    std::shared_ptr<ImportedMemory> memory;
    uint64_t uses = 0;
  };
  std::map<std::string, Imported> imports;  // by key
};

Default& default_entry(int device) {
  static auto* entries = new std::array<Default, kMostDevices>;  // outlives every thread
  return entries->at(device);
}

/// Calls `function`, and keeps its exception when it is the first.
template <class F>
void keep_first_error(std::exception_ptr& first, F function) {
  try {
    function();
  } catch (...) {
    if (!first) first = std::current_exception();
  }
}

}  // namespace

Context::Context(int device, bool is_default)
    : device_(device),
      id_(next_id++),
      is_default_(is_default),
      default_stream_(is_default ? Device::get(device).default_stream_ptr()
                                 : Device::get(device).create_stream()) {}

std::shared_ptr<Context> Context::create(int device) {
  return std::shared_ptr<Context>(new Context(device, false));
}

std::shared_ptr<Context> Context::current() {
  Device::require_usable();
  const std::optional<int> device = thread_device();
  require(device.has_value(), ErrorCode::kNoContext,
          "the calling thread has no current context: it has set no device");
  const std::shared_ptr<Context>& choice = chosen();
  if (choice == nullptr || choice->device() != *device) return default_of(*device);
  require(!choice->released_, ErrorCode::kNoContext, "the calling thread's context of device ", *device,
          " was destroyed");
  return choice;
}

void Context::make_current() {
  Device::require_usable();
  require(!released_, ErrorCode::kInvalidHandle, "the context of device ", device_, " was destroyed");
  set_thread_device(device_);
  chosen() = is_default_ ? nullptr : shared_from_this();
}

std::shared_ptr<Context> Context::default_of(int device) {
  Default& entry = default_entry(device);
  std::lock_guard lock(entry.mutex);
  require(!entry.released, ErrorCode::kNoContext, "the calling thread has no current context: device ",
          device, " was reset; set it again");
  if (entry.context == nullptr) entry.context.reset(new Context(device, true));
  return entry.context;
}

void Context::use_default(int device) {
  (void)Device::get(device);  // raises before anything is counted
  Default& entry = default_entry(device);
  {
    std::lock_guard lock(entry.mutex);
    ++entry.uses;
    entry.released = false;
  }
  default_of(device)->make_current();
}

void Context::unuse_default(int device, bool all) {
  Device::require_usable();
  Default& entry = default_entry(device);
  std::unique_lock lock(entry.mutex);
  require(entry.uses != 0, ErrorCode::kNoContext, "device ", device,
          " is not set: each reset takes one setting of the device back");
  if (!all && entry.uses > 1) {
    --entry.uses;
  } else {
    end_default(device, std::move(lock));
  }
}

void Context::end_default(int device) {
  Device::require_usable();
  end_default(device, std::unique_lock(default_entry(device).mutex));
}

void Context::end_default(int device, std::unique_lock<std::mutex> lock) {
  Running::require_outside_device(device, "reset");
  Device& of_device = Device::get(device);
  Default& entry = default_entry(device);
  entry.uses = 0;
  entry.released = true;
  const auto context = std::exchange(entry.context, nullptr);
  const auto memory = std::exchange(entry.memory, {});
  auto ranges = std::exchange(entry.ranges, {});
  auto imports = std::exchange(entry.imports, {});
  lock.unlock();
  // The context ends first: its streams are shared with whoever uses the device next.
  if (context != nullptr) context->end();
  {
    const auto changing = change_memory();
    for (void* address : memory) of_device.arena().retire(address);
  }
  ranges.clear();
  imports.clear();
  std::exception_ptr error;
  keep_first_error(error, [&] { of_device.synchronize(); });
  Device::after_work([&arena = of_device.arena(), memory] {
    for (void* address : memory) arena.give_back_retired(address);
  });
  of_device.core_limits().reset();
  for (int peer = 0; peer < device_count(); ++peer)
    if (Device::started(peer)) of_device.set_reaches(Device::get(peer), false);
  Device::wait_for_after_work(kFreeingLimit);  // what was freed before is given back too
  if (error) std::rethrow_exception(error);
}

uint64_t Context::uses_of_default(int device) {
  Default& entry = default_entry(device);
  std::lock_guard lock(entry.mutex);
  return entry.uses;
}

std::shared_ptr<Stream> Context::create_stream(StreamConfig config) {
  auto stream = Device::get(device_).create_stream(config);
  streams_.add(stream);
  require(!released_, ErrorCode::kNoContext, "the context of device ", device_, " was destroyed");
  return stream;
}

std::vector<std::shared_ptr<Stream>> Context::live_streams() {
  std::vector<std::shared_ptr<Stream>> streams = {default_stream_};
  streams_.append_to(streams);
  return streams;
}

void Context::set_parameter(size_t number, int64_t value) {
  std::lock_guard lock(mutex_);
  parameters_.at(number) = value;
}

std::optional<int64_t> Context::parameter(size_t number) {
  std::lock_guard lock(mutex_);
  return parameters_.at(number);
}

void Context::end() {
  released_ = true;
  for (const auto& stream : live_streams()) Callbacks::instance().end(*stream);
}

void Context::require_outside_tasks() {
  for (const auto& stream : live_streams())
    Running::require_outside_stream(stream->id(), "destroying a context");
}

void Context::release() {
  Device::require_usable();
  require_outside_tasks();
  end();
  std::exception_ptr error;
  for (const auto& stream : live_streams()) keep_first_error(error, [&] { stream->synchronize(); });
  if (error) std::rethrow_exception(error);
}

void* Context::allocate(size_t size) {
  Device& device = Device::get(device_);
  void* address = Device::with_freed_memory([&] { return device.arena().allocate(size); });
  Default& entry = default_entry(device_);
  std::lock_guard lock(entry.mutex);
  entry.memory.insert(address);
  return address;
}

void Context::free(void* address) {
  Device::require_usable();
  Device* device = Device::of(address);
  require(device != nullptr, ErrorCode::kInvalidArgument, "devPtr (", address,
          ") is not an address of a device; what aclrtMalloc and its kin gave is accepted");
  Default& entry = default_entry(device->index());
  {
    std::lock_guard lock(entry.mutex);
    require(entry.memory.erase(address) != 0, ErrorCode::kInvalidArgument, "devPtr (", address,
            ") is not the start of a live allocation of device ", device->index(),
            "; what aclrtMalloc and its kin gave is accepted");
  }
  {
    const auto changing = change_memory();
    device->arena().retire(address);
  }
  Device::after_work([&arena = device->arena(), address] { arena.give_back_retired(address); });
}

void* Context::reserve(size_t size, size_t alignment) {
  auto range = std::make_shared<AddressRange>(Device::get(device_), size, alignment);
  void* address = range->begin();
  Default& entry = default_entry(device_);
  std::lock_guard lock(entry.mutex);
  entry.ranges.emplace(address, std::move(range));
  return address;
}

std::shared_ptr<AddressRange> Context::range_of(const void* address) {
  Device::require_usable();
  if (const Device* device = Device::of(address)) {
    Default& entry = default_entry(device->index());
    std::lock_guard lock(entry.mutex);
    const auto after = entry.ranges.upper_bound(const_cast<void*>(address));
    if (after != entry.ranges.begin() && std::prev(after)->second->contains(address))
      return std::prev(after)->second;
  }
  raise(ErrorCode::kInvalidArgument, "device memory: ", address, " lies in no reserved range of addresses");
}

void Context::release_range(void* address) {
  const auto range = range_of(address);
  require(range->begin() == address && !range->mapped(), ErrorCode::kInvalidArgument,
          "device memory: ", address,
          range->begin() == address ? " starts a reserved range in which memory is mapped; unmap it first"
                                    : " is not the start of its reserved range of addresses");
  Default& entry = default_entry(Device::of(address)->index());
  std::lock_guard lock(entry.mutex);
  require(entry.ranges.erase(address) != 0, ErrorCode::kInvalidArgument, "device memory: the range at ",
          address, " was released already");
}

void* Context::import(const std::string& key) {
  std::shared_ptr<ImportedMemory> memory;  // goes without the lock where another thread was faster
  Default& entry = default_entry(device_);
  std::unique_lock lock(entry.mutex);
  if (const auto found = entry.imports.find(key); found != entry.imports.end()) {
    ++found->second.uses;
    return found->second.memory->address();
  }
  lock.unlock();  // the exporter may take its time
  memory = std::make_shared<ImportedMemory>(key, Device::get(device_));
  lock.lock();
  Default::Imported& imported = entry.imports[key];
  if (imported.memory == nullptr) imported.memory.swap(memory);
  ++imported.uses;
  return imported.memory->address();
}

bool Context::end_import(const std::string& key) {
  Device::require_usable();
  for (int device = 0; device < device_count(); ++device) {
    std::shared_ptr<ImportedMemory> last;  // goes without the lock
    Default& entry = default_entry(device);
    std::lock_guard lock(entry.mutex);
    const auto found = entry.imports.find(key);
    if (found == entry.imports.end()) continue;
    if (--found->second.uses == 0) {
      last = std::move(found->second.memory);
      entry.imports.erase(found);
    }
    return true;
  }
  return false;
}

}  // namespace anynpu
