#pragma once

#include <torch/csrc/profiler/combined_traceback.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/block_pool.h"

namespace torch_npu {

using Traceback = std::shared_ptr<torch::CapturedTraceback>;

/// What torch.npu.memory._record_memory_history asks for.
struct HistoryOptions {
  /// For which blocks stacks are kept; each level includes those before it.
  enum class Stacks : uint8_t { kNone, kLiveBlocks, kAllocations, kFrees };
  Stacks stacks = Stacks::kFrees;
  bool cpp_frames = true;  ///< else only those of Python and TorchScript
  bool events = true;      ///< else only the stacks of live blocks are kept
  size_t most_events = SIZE_MAX;
  bool forget = false;  ///< the events so far
  std::set<anynpu::PoolEvent::Action> skipped = {};
};

/// One thing that the pool of a device did.
struct HistoryEvent {
  anynpu::PoolEvent::Action action;
  uintptr_t address;  ///< see anynpu::PoolEvent
  size_t size;
  uint64_t stream, group;
  int64_t microseconds;  ///< since 1970
  Traceback stack;       ///< null where none was kept
  std::string metadata;
};

/// Records from now on; starts all devices.
void record_history(HistoryOptions options);
void stop_history();
/// The events of each device, the oldest first.
std::vector<std::vector<HistoryEvent>> history();

/// The calling thread's stack, for a block that it allocates or frees; null where the history wants none.
anynpu::PoolNote allocation_note();
anynpu::PoolNote free_note();
/// The stack of such a note; null where there is none.
Traceback traceback(const anynpu::PoolNote& note);

/// A text that the events of the calling thread carry.
void set_history_metadata(std::string text);
const std::string& history_metadata();

}  // namespace torch_npu
