#include "runtime/device.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

#include "base/error.h"
#include "base/fork.h"
#include "base/options.h"
#include "base/thread_state.h"
#include "runtime/executor.h"
#include "runtime/running.h"

namespace anynpu {
namespace {

Option devices_option("ANYNPU_DEVICES", "",
                      "number of logical devices, at most 64; default: LOCAL_WORLD_SIZE");
Option ranks_option("LOCAL_WORLD_SIZE", "1", "set by torchrun: the number of ranks on this machine");

Option soc_option("ANYNPU_SOC", "Ascend910B2", "name of the processor that the devices pass for");

constexpr auto kExitLimit = std::chrono::seconds(2);

std::array<std::atomic<Device*>, kMostDevices> devices =
    {};  // never destroyed: threads and handlers use them
std::atomic<bool> any_started = false;
std::atomic<bool> in_fork = false;

thread_local std::optional<int> current_device;

/// The streams of what Device::after_work() still has to call.
WeakStreams& after_work_streams() {
  static auto* streams = new WeakStreams;  // outlives every thread
  return *streams;
}

using CurrentStreams = std::array<std::shared_ptr<Stream>, kMostDevices>;  // of a thread

void start_runtime() {
  if (any_started) return;
  pthread_atfork(nullptr, nullptr, [] { in_fork.store(true, std::memory_order_relaxed); });
  std::atexit([] { shutdown(); });
  any_started = true;
}

}  // namespace

int device_count() {
  static const int count = [] {
    const Option& option = devices_option.text().empty() ? ranks_option : devices_option;
    const int64_t wanted = option.integer(1);
    require(wanted <= kMostDevices, ErrorCode::kInvalidArgument, "option ", option.name(), ": ", wanted,
            " devices are more than ", kMostDevices);
    return static_cast<int>(wanted);
  }();
  return count;
}

const char* soc_name() {
  static const auto* name = new std::string(soc_option.text());  // callers keep the pointer
  return name->c_str();
}

Device& Device::get(int index) {
  require_usable();
  require(index >= 0 && index < device_count(), ErrorCode::kInvalidDevice, "invalid device ordinal ", index,
          ": 0 to ", device_count() - 1, " exist (option ANYNPU_DEVICES)");
  return made_once(devices[index], [&] {
    lane_for(0);  // reads its option: what is wrong with it stops the start, and not each launch
    start_runtime();
    return new Device(index);
  });
}

bool Device::started() { return any_started; }

bool Device::started(int index) { return devices.at(index) != nullptr; }

bool Device::forked() { return in_fork.load(std::memory_order_relaxed); }

void Device::require_usable() {
  require(!forked(), ErrorCode::kForked,
          "Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing, you must use the "
          "'spawn' start method");
  require(!Executor::stopped(), ErrorCode::kNotInitialized,
          "the NPU runtime was shut down: the process is exiting");
}

Device* Device::of(const void* address) { return meeting(address, static_cast<const char*>(address) + 1); }

Device* Device::meeting(const void* begin, const void* end) {
  for (int index = 0, count = any_started ? device_count() : 0; index < count; ++index)
    if (Device* device = devices[index].load(std::memory_order_acquire);
        device && device->arena_.meets(begin, end))
      return device;
  return nullptr;
}

Device::Device(int index)
    : index_(index), arena_(index), pool_(arena_), default_stream_(Stream::create(index)) {}

std::shared_ptr<Stream> Device::create_stream(StreamConfig config) {
  auto stream = Stream::create(index_, config);
  streams_.add(stream);
  return stream;
}

std::vector<std::shared_ptr<Stream>> Device::live_streams() const {
  std::vector<std::shared_ptr<Stream>> streams = {default_stream_};
  streams_.append_to(streams);
  return streams;
}

std::shared_ptr<Stream> Device::live_stream(uint64_t id) const {
  if (default_stream_->id() == id) return default_stream_;
  for (auto& stream : live_streams())
    if (stream->id() == id) return std::move(stream);
  return nullptr;
}

bool Device::synchronize(std::optional<Duration> limit) {
  Running::require_outside_device(index_, "synchronize");
  const auto deadline = std::chrono::steady_clock::now() + limit.value_or(Duration::zero());
  std::exception_ptr first_error;
  for (const auto& stream : live_streams()) {
    std::optional<Duration> rest;
    if (limit) rest = std::max(Duration::zero(), Duration(deadline - std::chrono::steady_clock::now()));
    try {
      if (!stream->synchronize(rest)) return false;
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
  return true;
}

bool Device::abort(std::optional<Duration> limit) {
  Running::require_outside_device(index_, "abort");
  const auto deadline = std::chrono::steady_clock::now() + limit.value_or(Duration::zero());
  const auto streams = live_streams();
  for (const auto& stream : streams) stream->abort(ErrorCode::kDeviceAborted);
  bool ended = true;
  for (const auto& stream : streams) {
    std::optional<Duration> rest;
    if (limit) rest = std::max(Duration::zero(), Duration(deadline - std::chrono::steady_clock::now()));
    ended = stream->record()->wait(rest) && ended;  // a synchronisation would take the error
  }
  return ended;
}

void Device::reset() {
  abort();
  try {
    synchronize();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kDeviceAborted) throw;
  }
  pool_.release_unused();
}

void Device::after_work(UniqueFunction function) {
  if (!started() || forked()) return function();
  if (Executor::stopped()) return;
  std::shared_ptr<Stream> after;
  for (const auto& place : devices) {
    const Device* device = place.load(std::memory_order_acquire);
    if (device == nullptr) continue;
    for (const auto& stream : device->live_streams()) {
      if (stream->idle_but_for_caller()) continue;
      if (after == nullptr) after = Stream::create(device->index());
      after->wait(stream->record());
    }
  }
  if (after == nullptr) return function();
  after->launch(Lane::kShort, std::move(function), Writes::nothing());
  after_work_streams().add(after);
}

bool Device::wait_for_after_work(Duration limit) {
  if (!started() || forked()) return true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::vector<std::shared_ptr<Stream>> streams;
  after_work_streams().append_to(streams);
  for (const auto& stream : streams)
    if (!stream->synchronize(
            std::max(Duration::zero(), Duration(deadline - std::chrono::steady_clock::now()))))
      return false;
  return true;
}

void shutdown() {
  if (Device::started() && !Device::forked()) Executor::instance().shutdown(kExitLimit);
}

std::optional<int> thread_device() { return current_device; }

void set_thread_device(std::optional<int> index) {
  require(!index || (*index >= 0 && *index < device_count()), ErrorCode::kInvalidDevice,
          "invalid device ordinal ", index.value_or(-1), ": 0 to ", device_count() - 1,
          " exist (option ANYNPU_DEVICES)");
  current_device = index;
}

Stream& current_stream(int device) {
  Stream* stream = thread_state<CurrentStreams>().at(device).get();
  return stream != nullptr ? *stream : Device::get(device).default_stream();
}

std::shared_ptr<Stream> current_stream_ptr(int device) {
  const auto& stream = thread_state<CurrentStreams>().at(device);
  return stream != nullptr ? stream : Device::get(device).default_stream_ptr();
}

void set_current_stream(std::shared_ptr<Stream> stream) {
  const int device = stream->device();
  thread_state<CurrentStreams>().at(device) = std::move(stream);
}

}  // namespace anynpu
