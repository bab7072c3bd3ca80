#include "runtime/standstill.h"

#include "base/error.h"
#include "runtime/stream.h"

namespace anynpu {
namespace {

constexpr auto kLimit = std::chrono::seconds(20);

std::mutex& standing() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

}  // namespace

Standstill::Standstill() : one_at_a_time_(standing()), end_(std::make_shared<Recording>()) {
  const auto deadline = Recording::Clock::now() + kLimit;
  const auto streams = Stream::hold_all(end_);
  for (const auto& stream : streams)
    if (!stream->wait_until_still(deadline)) {
      Stream::hold_all(nullptr);
      end_->complete(nullptr);
      raise(ErrorCode::kTimeout, "a task of stream ", stream->id(), " of device ", stream->device(),
            " did not end while all others stand still");
    }
}

Standstill::~Standstill() {
  Stream::hold_all(nullptr);
  end_->complete(nullptr);
}

}  // namespace anynpu
