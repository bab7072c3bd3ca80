#include "torch_npu/csrc/memory_history.h"

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>

#include "runtime/device.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/guard.h"

namespace torch_npu {
namespace {

using anynpu::PoolEvent;
using anynpu::PoolNote;
using Stacks = HistoryOptions::Stacks;

/// What threads ask for each block that they allocate or free, without a lock.
std::atomic<Stacks> wanted_stacks = Stacks::kNone;
std::atomic<bool> wanted_cpp_frames = false;

struct History {
  std::mutex mutex;  // taken under the locks of pools; nothing is locked while it is held
  HistoryOptions options;
  std::array<std::deque<HistoryEvent>, anynpu::kMostDevices> events;
};

History& instance() {
  static auto* history = new History;  // pools may tell it something until the very end
  return *history;
}

thread_local std::string metadata;

void note_event(const PoolEvent& event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  History& history = instance();
  std::lock_guard lock(history.mutex);
  const HistoryOptions& options = history.options;
  if (options.skipped.contains(event.action)) return;
  const bool with_stack = options.stacks >= Stacks::kAllocations;
  auto& events = history.events.at(event.device);
  events.push_back({event.action, event.address, event.size, event.stream, event.group,
                    std::chrono::duration_cast<std::chrono::microseconds>(now).count(),
                    with_stack ? traceback(event.note) : nullptr, metadata});
  while (events.size() > options.most_events) events.pop_front();
}

PoolNote note_for(Stacks level) {
  if (wanted_stacks.load(std::memory_order_relaxed) < level) [[likely]]
    return nullptr;
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, wanted_cpp_frames);
}

void observe_pools(const anynpu::PoolObserver& observer) {
  for (c10::DeviceIndex device = 0; device < device_count(); ++device)
    if (observer != nullptr || is_started(device))
      npu_call([&] { anynpu::Device::get(device).pool().observe(observer); });
}

}  // namespace

void record_history(HistoryOptions options) {
  const bool events = options.events;
  wanted_cpp_frames = options.cpp_frames;
  wanted_stacks = options.stacks;
  History& history = instance();
  {
    std::lock_guard lock(history.mutex);
    if (options.forget)
      for (auto& each : history.events) each.clear();
    history.options = std::move(options);
  }
  observe_pools(events ? anynpu::PoolObserver(note_event) : nullptr);
}

void stop_history() {
  wanted_stacks = Stacks::kNone;
  observe_pools(nullptr);
}

std::vector<std::vector<HistoryEvent>> history() {
  std::vector<std::vector<HistoryEvent>> result;
  History& history = instance();
  std::lock_guard lock(history.mutex);
  for (c10::DeviceIndex device = 0; device < device_count(); ++device)
    result.emplace_back(history.events.at(device).begin(), history.events.at(device).end());
  return result;
}

PoolNote allocation_note() { return note_for(Stacks::kLiveBlocks); }
PoolNote free_note() { return note_for(Stacks::kFrees); }

Traceback traceback(const PoolNote& note) { return std::static_pointer_cast<torch::CapturedTraceback>(note); }

void set_history_metadata(std::string text) { metadata = std::move(text); }
const std::string& history_metadata() { return metadata; }

}  // namespace torch_npu
