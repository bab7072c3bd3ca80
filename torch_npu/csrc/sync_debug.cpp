#include "torch_npu/csrc/sync_debug.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace torch_npu {
namespace {

std::atomic<SyncDebugMode> mode = SyncDebugMode::kDefault;

}  // namespace

SyncDebugMode sync_debug_mode() { return mode.load(std::memory_order_relaxed); }
void set_sync_debug_mode(SyncDebugMode next) { mode = next; }

void note_sync() {
  const SyncDebugMode now = sync_debug_mode();
  TORCH_CHECK(now != SyncDebugMode::kError, "called a synchronizing NPU operation");
  if (now == SyncDebugMode::kWarn) TORCH_WARN("called a synchronizing NPU operation");
}

}  // namespace torch_npu
