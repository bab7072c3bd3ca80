// Device npu in torch.autograd.profiler: how long the work of an operator took on its stream, by events.

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "runtime/event.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

using torch::profiler::impl::ProfilerVoidEventStub;

struct EventTimes final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, ProfilerVoidEventStub* event, int64_t* cpu_ns) const override {
    const c10::DeviceIndex current = current_device();
    auto recorded = std::make_shared<anynpu::Event>();
    npu_call([&] { recorded->record(*runtime_stream(current_stream(current))); });
    if (device != nullptr) *device = current;
    if (cpu_ns != nullptr) *cpu_ns = c10::getTime();
    *event = std::move(recorded);
  }

  /// Microseconds.
  float elapsed(const ProfilerVoidEventStub* start, const ProfilerVoidEventStub* end) const override {
    const auto event = [](const ProfilerVoidEventStub& stub) {
      auto& recorded = *static_cast<anynpu::Event*>(stub.get());
      wait_until([&](anynpu::Duration limit) { return recorded.synchronize(limit); });
      return &recorded;
    };
    const anynpu::Event *from = event(*start), *to = event(*end);
    return static_cast<float>(npu_call([&] { return from->elapsed_ms(*to); }) * 1000);
  }

  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> call) const override {
    for (c10::DeviceIndex device = 0; device < device_count(); ++device)
      if (is_started(device)) call(device);
  }
  void synchronize() const override {
    if (const c10::DeviceIndex device = current_device(); is_started(device)) synchronize_device(device);
  }

  // Marks and ranges are for other tools to see, of which there are none.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
};

const bool kRegistered = [] {
  static EventTimes times;
  torch::profiler::impl::registerPrivateUse1Methods(&times);
  return true;
}();

}  // namespace
}  // namespace torch_npu
