#include "runtime/limits.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/thread_state.h"
#include "runtime/device.h"

namespace anynpu {
namespace {

std::atomic<bool> any_limit = false;  // ever

struct InUse {
  std::shared_ptr<Stream> stream;
};

}  // namespace

TimeLimits& time_limits() {
  static auto* limits = new TimeLimits;  // outlives every thread
  return *limits;
}

uint32_t core_count() {
  static const uint32_t count = std::max(1u, std::thread::hardware_concurrency());
  return count;
}

void CoreLimits::set(CoreKind kind, uint32_t most) {
  require(most >= 1 && most <= core_count(), ErrorCode::kInvalidArgument, "a limit of ", most,
          " cores: 1 to ", core_count(), " are accepted");
  most_[static_cast<size_t>(kind)] = most;
  any_limit = true;
}

void CoreLimits::reset() {
  for (auto& most : most_) most = 0;
}

void use_core_limits_of(std::shared_ptr<Stream> stream) { thread_state<InUse>().stream = std::move(stream); }

std::shared_ptr<Stream> core_limits_in_use() { return thread_state<InUse>().stream; }

uint32_t cores_of_thread(CoreKind kind, int device) {
  const auto& stream = thread_state<InUse>().stream;
  if (const uint32_t most = stream != nullptr ? stream->core_limits().get(kind) : 0) return most;
  const uint32_t most = Device::started(device) ? Device::get(device).core_limits().get(kind) : 0;
  return most != 0 ? most : core_count();
}

uint32_t thread_limit(int device) {
  if (!any_limit.load(std::memory_order_relaxed)) return 0;
  return std::min(cores_of_thread(CoreKind::kCube, device), cores_of_thread(CoreKind::kVector, device));
}

}  // namespace anynpu
