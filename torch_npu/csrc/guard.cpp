#include "torch_npu/csrc/guard.h"

#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "runtime/device.h"
#include "runtime/event.h"
#include "runtime/handles.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

using anynpu::HandledEvent;
using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;

/// The streams of torch's own, which live as long as the process; any other is known by its handle.
class StreamPools {
 public:
  static StreamPools& instance() {
    static auto* pools = new StreamPools;
    return *pools;
  }

  /// The next stream of the device's pool for that urgency, in turn.
  std::shared_ptr<anynpu::Stream> next(DeviceIndex device, bool urgent) {
    std::lock_guard lock(mutex_);
    Pool& pool = pools_[{device, urgent}];
    std::shared_ptr<anynpu::Stream>& stream = pool.streams[pool.next];
    pool.next = (pool.next + 1) % pool.streams.size();
    if (stream == nullptr) {
      stream = anynpu::Device::get(device).create_stream({.priority = urgent ? -1 : 0});
      streams_[stream->id()] = stream;
    }
    return stream;
  }

  std::shared_ptr<anynpu::Stream> find(uint64_t id) {
    std::lock_guard lock(mutex_);
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : found->second;
  }

 private:
  struct Pool {
    std::array<std::shared_ptr<anynpu::Stream>, 32> streams;
    size_t next = 0;
  };
  std::mutex mutex_;
  std::map<std::pair<DeviceIndex, bool>, Pool> pools_;
  std::unordered_map<uint64_t, std::shared_ptr<anynpu::Stream>> streams_;
};

c10::Stream default_stream(DeviceIndex device) {
  return c10::Stream(c10::Stream::DEFAULT, {DeviceType::PrivateUse1, device});
}

DeviceIndex index_or_current(Device device) { return device.has_index() ? device.index() : current_device(); }

/// What the guard's record() makes an event of, instead of recording it: see create_event().
thread_local std::shared_ptr<HandledEvent> event_to_create;

/// A c10::Event holds the handle of its event.
std::shared_ptr<HandledEvent> handled(const void* event) {
  return npu_call([&] { return anynpu::object_of<HandledEvent>(event, "event"); });
}

/// Devices, streams and events for c10::DeviceGuard, torch.Stream, torch.Event and the autograd engine.
struct NpuGuardImpl final : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::PrivateUse1; }

  Device getDevice() const override { return {type(), current_device()}; }

  void setDevice(Device device) const override {
    TORCH_CHECK(device.type() == type(), "set_device: expected an npu device, got ", device);
    npu_call([&] { anynpu::set_thread_device(device.index()); });
  }

  Device exchangeDevice(Device device) const override {
    const Device previous = getDevice();
    if (device.index() != previous.index()) setDevice(device);
    return previous;
  }

  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0 && device.index() < deviceCount()) anynpu::set_thread_device(device.index());
  }

  DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Stream getStream(Device device) const override { return current_stream(index_or_current(device)); }

  c10::Stream getDefaultStream(Device device) const override {
    return default_stream(index_or_current(device));
  }

  c10::Stream getStreamFromGlobalPool(Device device, bool urgent) const override {
    return npu_call(
        [&] { return c10_stream(*StreamPools::instance().next(index_or_current(device), urgent)); });
  }

  c10::Stream getNewStream(Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream previous = getStream(stream.device());
    if (stream != previous) npu_call([&] { anynpu::set_current_stream(runtime_stream(stream)); });
    return previous;
  }

  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of_stream(stream); }

  bool queryStream(const c10::Stream& stream) const override { return runtime_stream(stream)->idle(); }

  void synchronizeStream(const c10::Stream& stream) const override {
    wait_for_stream(*runtime_stream(stream));
  }

  void synchronizeDevice(const DeviceIndex device) const override { synchronize_device(device); }

  void record(void** event, const c10::Stream& stream, const DeviceIndex device,
              const c10::EventFlag flag) const override {
    if (event_to_create != nullptr) {
      *event = npu_call([] { return anynpu::new_handle(std::exchange(event_to_create, nullptr)); });
      return;
    }
    if (*event == nullptr)
      *event = anynpu::new_handle(
          std::make_shared<HandledEvent>(flag == c10::EventFlag::BACKEND_DEFAULT, /*is_waitable=*/true));
    const auto recorded = handled(*event);
    const bool any_device = recorded->event.shared() != nullptr || !recorded->event.recorded();
    TORCH_CHECK(any_device || device == stream.device_index(), "Event device index ",
                static_cast<int>(device), " does not match recording stream's device index ",
                static_cast<int>(stream.device_index()), ".");
    npu_call([&] { recorded->event.record(*runtime_stream(stream)); });
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const auto waited = handled(event);
    npu_call([&] { runtime_stream(stream)->wait(waited->event); });
  }

  bool queryEvent(void* event) const override { return event == nullptr || handled(event)->event.done(); }

  void destroyEvent(void* event, const DeviceIndex) const noexcept override { anynpu::drop_handle(event); }

  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    const auto waited = handled(event);
    wait_until([&](anynpu::Duration limit) { return waited->event.synchronize(limit); });
  }

  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    return elapsed_ms(start, end);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    npu_allocator()->recordStream(data, stream);
  }

  /// Every type that a CPU tensor may have, an npu tensor may have.
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, NpuGuardImpl)

}  // namespace

DeviceIndex device_count() noexcept {
  try {
    return static_cast<DeviceIndex>(anynpu::device_count());
  } catch (const anynpu::Error&) {  // an option that cannot be read; the first use of a device says so
    return 0;
  }
}

DeviceIndex current_device() {
  if (const auto chosen = anynpu::thread_device()) return static_cast<DeviceIndex>(*chosen);
  if (device_count() != 0) anynpu::set_thread_device(0);
  return 0;
}

void check_device(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "invalid device ordinal ", device, ": 0 to ",
              static_cast<int>(device_count()) - 1, " exist (option ANYNPU_DEVICES)");
}

bool is_started(int device) {
  check_device(device);
  return anynpu::Device::started(device) && !anynpu::Device::forked();
}

c10::Stream current_stream(DeviceIndex device) {
  if (!is_started(device)) return default_stream(device);
  return npu_call([&] { return c10_stream(anynpu::current_stream(device)); });
}

std::shared_ptr<anynpu::Stream> runtime_stream(const c10::Stream& stream) {
  return npu_call([&] {
    if (stream.id() == 0) return anynpu::Device::get(stream.device_index()).default_stream_ptr();
    const auto id = static_cast<uint64_t>(stream.id());
    auto found = StreamPools::instance().find(id);
    if (found == nullptr) {
      const void* const handle = anynpu::handle_with(anynpu::HandleKind::kStream, id);
      found = anynpu::object_of<anynpu::StreamInContext>(handle, "stream")->stream;
    }
    TORCH_CHECK(found->device() == stream.device_index(), "stream: device ", stream.device(),
                " has no stream with id ", stream.id());
    return found;
  });
}

c10::Stream c10_stream(anynpu::Stream& stream) {
  const auto device = static_cast<DeviceIndex>(stream.device());
  if (&stream == npu_call([&] { return &anynpu::Device::get(device).default_stream(); }))
    return default_stream(device);
  return c10::Stream(c10::Stream::UNSAFE, {DeviceType::PrivateUse1, device},
                     static_cast<c10::StreamId>(stream.id()));
}

void* handle_of_stream(const c10::Stream& stream) {
  const auto found = runtime_stream(stream);
  return npu_call([&]() -> void* {
    void* const handle = anynpu::handle_with(anynpu::HandleKind::kStream, found->id());
    if (stream.id() == 0 || StreamPools::instance().find(found->id()) != nullptr) {
      auto context = anynpu::Context::default_of(found->device());
      const auto in_context = std::make_shared<anynpu::StreamInContext>(found, std::move(context));
      return anynpu::add_handle(anynpu::HandleKind::kStream, found->id(), in_context);
    }
    (void)anynpu::object_of<anynpu::StreamInContext>(handle, "stream");
    return handle;
  });
}

c10::Stream stream_of_handle(const void* handle) {
  const auto found =
      npu_call([&] { return anynpu::object_of<anynpu::StreamInContext>(handle, "stream_ptr"); });
  return c10_stream(*found->stream);
}

void create_event(c10::Event& event, std::shared_ptr<HandledEvent> as) {
  if (event.eventId() != nullptr) return;
  event_to_create = std::move(as);
  event.record(default_stream(current_device()));
}

double elapsed_ms(const void* start, const void* end) {
  TORCH_CHECK(start != nullptr && end != nullptr, "elapsed_time: the ", start == nullptr ? "start" : "end",
              " event was never recorded");
  const auto from = handled(start), to = handled(end);
  return npu_call([&] { return from->event.elapsed_ms(to->event); });
}

void synchronize_device(DeviceIndex device) {
  wait_until([&](anynpu::Duration limit) { return anynpu::Device::get(device).synchronize(limit); });
}

}  // namespace torch_npu
