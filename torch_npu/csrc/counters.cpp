#include "torch_npu/csrc/counters.h"

#include <map>
#include <memory>
#include <mutex>

namespace torch_npu {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<OpCounter>> counters;
  std::atomic<uint64_t> copies = 0, copied_bytes = 0;
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

}  // namespace

OpCounter& op_counter(const std::string& name) {
  std::lock_guard lock(registry().mutex);
  std::unique_ptr<OpCounter>& counter = registry().counters[name];
  if (counter == nullptr) counter = std::make_unique<OpCounter>(name);
  return *counter;
}

void count_fallback_copy(size_t bytes) {
  registry().copies.fetch_add(1, std::memory_order_relaxed);
  registry().copied_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

Counters read_counters() {
  Counters result;
  std::lock_guard lock(registry().mutex);
  for (const auto& [name, counter] : registry().counters) {
    const OpCount count = {name, counter->fallbacks, counter->native_launches, counter->format_conversions};
    if (count.fallbacks + count.native_launches + count.format_conversions == 0) continue;
    result.fallbacks += count.fallbacks;
    result.native_launches += count.native_launches;
    result.format_conversions += count.format_conversions;
    result.ops.push_back(count);
  }
  result.fallback_copies = registry().copies;
  result.fallback_copied_bytes = registry().copied_bytes;
  return result;
}

void reset_counters() {
  std::lock_guard lock(registry().mutex);
  for (const auto& [name, counter] : registry().counters) {
    counter->fallbacks = 0;
    counter->native_launches = 0;
    counter->format_conversions = 0;
  }
  registry().copies = 0;
  registry().copied_bytes = 0;
}

}  // namespace torch_npu
