#include "runtime/event.h"

#include <utility>

#include "base/error.h"
#include "runtime/running.h"
#include "runtime/shared_event.h"
#include "runtime/stream.h"

namespace anynpu {

bool Recording::wait(std::optional<Duration> limit) const {
  if (done()) return true;
  Running::require_outside_stream(stream_, "waiting for an event");
  const auto deadline = Clock::now() + limit.value_or(Duration::zero());
  std::unique_lock lock(mutex_);
  while (!done()) {
    require(!Executor::stopped(), ErrorCode::kNotInitialized,
            "waiting for an event: the device was shut down");
    if (limit && Clock::now() >= deadline) return false;
    if (Executor::instance().help_if_starved(lock)) continue;
    const auto slice = Clock::now() + kShutdownPoll;
    reached_.wait_until(lock, limit ? std::min(deadline, slice) : slice);
  }
  return true;
}

std::vector<std::shared_ptr<Stream>> Recording::reach(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  time_ = Clock::now();
  error_ = std::move(error);
  done_.store(true, std::memory_order_release);
  return std::exchange(waiting_, {});
}

void Recording::resume(const std::vector<std::shared_ptr<Stream>>& waiting) {
  reached_.notify_all();
  if (then_) then_();
  for (const auto& stream : waiting) stream->resume();
}

bool Recording::done_or_resume_later(std::shared_ptr<Stream> stream) {
  if (done()) return true;
  std::lock_guard lock(mutex_);
  if (done()) return true;
  waiting_.push_back(std::move(stream));
  return false;
}

void Event::record(Stream& stream) {
  if (shared_ != nullptr) {
    shared_->record(stream);
    return;
  }
  auto recording = stream.record();
  std::lock_guard lock(mutex_);
  recording_ = std::move(recording);
}

void Event::reset() {
  require(shared_ == nullptr, ErrorCode::kUnsupported, "an event of several processes cannot be reset");
  std::lock_guard lock(mutex_);
  recording_.reset();
}

std::shared_ptr<Recording> Event::recording() const {
  if (shared_ != nullptr) return shared_->recording();
  std::lock_guard lock(mutex_);
  return recording_;
}

bool Event::recorded() const { return recording() != nullptr; }

bool Event::done() const {
  const auto latest = recording();
  return latest == nullptr || latest->done();
}

bool Event::synchronize(std::optional<Duration> limit) const {
  const auto latest = recording();
  if (latest == nullptr) return true;
  if (!latest->wait(limit)) return false;
  if (auto error = latest->error()) std::rethrow_exception(error);
  return true;
}

double Event::elapsed_ms(const Event& end) const {
  const auto point = [](const Event& event, const char* which) {
    const auto latest = event.recording();
    require(event.timing(), ErrorCode::kInvalidArgument, "elapsed time: the ", which,
            " event was made without timing");
    require(latest != nullptr, ErrorCode::kInvalidArgument, "elapsed time: the ", which,
            " event was never recorded");
    require(latest->done(), ErrorCode::kInvalidArgument, "elapsed time: the ", which,
            " event is not complete yet; synchronize it first");
    return latest->time();
  };
  const auto from = point(*this, "start"), to = point(end, "end");
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace anynpu
