#include "runtime/context.h"

#include <array>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/thread_state.h"
#include "runtime/callbacks.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/running.h"

namespace anynpu {
namespace {

std::atomic<uint64_t> next_id = 1;

/// The context that the thread chose on that context's device; null or of another device: the default one.
struct Chosen {
  std::shared_ptr<Context> context;
};
std::shared_ptr<Context>& chosen() { return thread_state<Chosen>().context; }

/// How long an allocation that does not fit waits for memory that is freed once queued work is done.
constexpr auto kFreeingLimit = std::chrono::seconds(2);

/// The default context of a device, and what ends with it.
struct Default {
  std::mutex mutex;
  uint64_t uses = 0;
  bool released = false;  // by unuse_default(), until the next use
  std::shared_ptr<Context> context;
  std::set<void*> memory;
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
  lock.unlock();
  // The context ends first: its streams are shared with whoever uses the device next.
  if (context != nullptr) context->end();
  {
    const auto changing = change_memory();
    for (void* address : memory) of_device.arena().retire(address);
  }
  std::exception_ptr error;
  keep_first_error(error, [&] { of_device.synchronize(); });
  Device::after_work([&arena = of_device.arena(), memory] {
    for (void* address : memory) arena.give_back_retired(address);
  });
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
  void* address = nullptr;
  try {
    address = device.arena().allocate(size);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory || !Device::wait_for_after_work(kFreeingLimit)) throw;
    address = device.arena().allocate(size);
  }
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

}  // namespace anynpu
