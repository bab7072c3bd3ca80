#include "runtime/value_wait.h"

#include <atomic>
#include <memory>

#include "runtime/device.h"
#include "runtime/watcher.h"

namespace anynpu {
namespace {

bool passes(uint64_t found, ValueTest test, uint64_t value) {
  switch (test) {
    case ValueTest::kAtLeast:
      return static_cast<int64_t>(found - value) >= 0;
    case ValueTest::kEqual:
      return found == value;
    case ValueTest::kAnyCommonBit:
      return (found & value) != 0;
    case ValueTest::kAnyBitInNeither:
      return ~(found | value) != 0;
  }
  return true;
}

}  // namespace

void write_value_async(uint64_t* address, uint64_t value, Stream& stream) {
  void* const written[] = {address};
  stream.launch(Lane::kShort, [=] { std::atomic_ref(*address).store(value); }, Writes(written));
}

void wait_for_value_async(const uint64_t* address, ValueTest test, uint64_t value, Stream& stream) {
  auto passed = std::make_shared<Recording>();
  // The memory lives while the stream waits; an abort may end that, and then load() finds nothing. Only the
  // stream owns the recording: where it waits no longer, nobody need look.
  const auto look = [&arena = Device::of(address)->arena(), address, test, value,
                     weak = std::weak_ptr(passed)] {
    const auto recording = weak.lock();
    if (recording == nullptr) return true;
    const auto found = arena.load(address);
    if (found && !passes(*found, test, value)) return false;
    recording->complete(nullptr);
    return true;
  };
  (void)stream.record([look] {  // reached in any case; a task is skipped after a failure
    if (!look()) Watcher::instance().watch(look);
  });
  stream.wait(std::move(passed));
}

}  // namespace anynpu
