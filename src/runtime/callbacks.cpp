#include "runtime/callbacks.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/running.h"

namespace anynpu {

Callbacks::Outstanding::Outstanding(std::shared_ptr<Subscription> subscription)
    : subscription_(std::move(subscription)) {
  ++subscription_->outstanding;
}

Callbacks::Outstanding::~Outstanding() {
  if (subscription_ == nullptr) return;  // moved from
  Callbacks& callbacks = instance();
  std::lock_guard lock(callbacks.mutex_);
  if (--subscription_->outstanding == 0 && subscription_->ended)
    callbacks.thread_has_one_less(subscription_->thread);
}

Callbacks& Callbacks::instance() {
  static auto* callbacks = new Callbacks;  // outlives every thread
  return *callbacks;
}

void Callbacks::subscribe(uint64_t thread, const Stream& stream) {
  Device::require_usable();
  std::lock_guard lock(mutex_);
  auto& subscription = subscriptions_[stream.id()];
  require(subscription == nullptr, ErrorCode::kAlreadySubscribed, "stream ", stream.id(),
          " is subscribed to thread ", subscription ? subscription->thread : 0, " already");
  subscription = std::make_shared<Subscription>(Subscription{.thread = thread});
  ++threads_[thread].streams;
}

void Callbacks::unsubscribe(uint64_t thread, const Stream& stream) {
  Device::require_usable();
  std::lock_guard lock(mutex_);
  const auto found = subscriptions_.find(stream.id());
  require(found != subscriptions_.end() && found->second->thread == thread, ErrorCode::kStreamNotSubscribed,
          "stream ", stream.id(), " is not subscribed to thread ", thread);
  const int outstanding = found->second->outstanding;
  require(outstanding == 0, ErrorCode::kInvalidArgument, outstanding, " callbacks launched on stream ",
          stream.id(), " have not run; thread ", thread, " must process them first");
  subscriptions_.erase(found);
  thread_has_one_less(thread);
}

void Callbacks::end(const Stream& stream) {
  std::lock_guard lock(mutex_);
  const auto found = subscriptions_.find(stream.id());
  if (found == subscriptions_.end()) return;
  const auto subscription = std::move(found->second);
  subscriptions_.erase(found);
  subscription->ended = true;
  if (subscription->outstanding == 0) thread_has_one_less(subscription->thread);
}

void Callbacks::thread_has_one_less(uint64_t thread) {
  if (--threads_[thread].streams == 0) threads_.erase(thread);
  changed_.notify_all();
}

void Callbacks::launch(Stream& stream, UniqueFunction function, bool block) {
  Device::require_usable();
  std::unique_lock lock(mutex_);
  const auto found = subscriptions_.find(stream.id());
  require(found != subscriptions_.end(), ErrorCode::kStreamNotSubscribed, "stream ", stream.id(),
          " is not subscribed to a thread that would run the callback");
  const uint64_t thread = found->second->thread;
  auto ran = std::make_shared<Recording>();
  Callback callback{CompletesAtEnd(ran), std::move(function), block ? stream.id() : 0, stream.device(),
                    Outstanding(found->second)};
  lock.unlock();
  stream.launch(Lane::kShort, [this, thread, callback = std::move(callback)]() mutable {
    deliver(thread, std::move(callback));
  });
  if (block) stream.wait(std::move(ran));
}

void Callbacks::deliver(uint64_t thread, Callback callback) {
  std::lock_guard lock(mutex_);
  threads_[thread].ready.push_back(std::move(callback));  // subscribed: the callback is outstanding
  changed_.notify_all();
}

bool Callbacks::run_next(uint64_t thread, std::optional<Duration> limit) {
  using Clock = Recording::Clock;
  const auto deadline = Clock::now() + limit.value_or(Duration::zero());
  Device::require_usable();
  std::unique_lock lock(mutex_);
  auto found = threads_.end();
  while (true) {
    found = threads_.find(thread);
    require(found != threads_.end(), ErrorCode::kThreadNotSubscribed, "no stream is subscribed to thread ",
            thread);
    if (!found->second.ready.empty()) break;
    Device::require_usable();
    if (limit && Clock::now() >= deadline) return false;
    if (Executor::instance().help_if_starved(lock)) continue;
    const auto slice = Clock::now() + kShutdownPoll;
    changed_.wait_until(lock, limit ? std::min(deadline, slice) : slice);
  }
  Callback callback = std::move(found->second.ready.front());
  found->second.ready.pop_front();
  lock.unlock();
  std::optional<Running> frame;
  if (callback.holds != 0) frame.emplace(callback.holds, callback.device);
  callback.function();
  return true;
}

}  // namespace anynpu
