#include "runtime/stream.h"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fork.h"
#include "base/parallel.h"
#include "runtime/device.h"
#include "runtime/running.h"
#include "runtime/watcher.h"
#include "runtime/weak_streams.h"

namespace anynpu {
namespace {

std::atomic<uint64_t> next_id = 1;

/// Every stream there is.
struct Streams {
  std::mutex mutex;
  WeakStreams all;
  std::shared_ptr<Recording> hold;  // what streams to come are held by, or null
};
Streams& streams() {
  static auto* made = [] {
    auto* all = new Streams;  // outlives every thread
    hold_in_forks(all->mutex);
    return all;
  }();
  return *made;
}

/// Made when the library is loaded, so that no fork can find it half made.
[[maybe_unused]] Streams& made_at_load = streams();

struct Observer {
  using Observe = std::shared_ptr<const std::function<void(const TaskFailure&)>>;
  Observe get() {
    std::lock_guard lock(mutex);
    return observe;
  }
  std::mutex mutex;
  Observe observe;
};
Observer& observer() {
  static auto* made = new Observer;  // outlives every thread
  return *made;
}

void tell(const TaskFailure& failure) {
  const auto observe = observer().get();
  if (observe == nullptr) return;
  try {
    (*observe)(failure);
  } catch (__cxxabiv1::__forced_unwind&) {  // pthread_exit
    throw;
  } catch (...) {
  }
}

/// What a task leaves that took longer than `limit`, or null.
std::exception_ptr overrun(Recording::Clock::time_point start, Duration limit) {
  const Duration took = Recording::Clock::now() - start;
  if (limit == Duration::zero() || took <= limit) return nullptr;
  return std::make_exception_ptr(Error(
      ErrorCode::kTaskTimeout,
      concat("a task took ", took.count() / 1000, " microseconds; the limit is ", limit.count() / 1000)));
}

/// The system's number of the calling thread.
uint32_t this_thread() {
  static thread_local const auto number = static_cast<uint32_t>(gettid());
  return number;
}

}  // namespace

/// The stream's mutex. Threads that wait for progress are woken after it is given up, or they would only wake
/// to block on it again, which costs 4 of the 10 microseconds of a hand-over to the compute thread and back.
class Stream::Lock {
 public:
  explicit Lock(Stream& stream) : stream_(stream), lock_(stream.mutex_) {}
  ~Lock() {
    if (lock_.owns_lock()) unlock();
  }
  void lock() { lock_.lock(); }
  void unlock() {
    const bool wake = std::exchange(stream_.wake_, false);
    lock_.unlock();
    if (wake) stream_.progress_.notify_all();
  }
  void wait_until(Recording::Clock::time_point time) { stream_.progress_.wait_until(lock_, time); }

 private:
  Stream& stream_;
  std::unique_lock<std::mutex> lock_;
};

void observe_failures(std::function<void(const TaskFailure&)> observe) {
  auto shared =
      observe ? std::make_shared<const std::function<void(const TaskFailure&)>>(std::move(observe)) : nullptr;
  std::lock_guard lock(observer().mutex);
  observer().observe = std::move(shared);
}

std::shared_ptr<Stream> Stream::create(int device, StreamConfig config) {
  const std::shared_ptr<Stream> stream(new Stream(device, config));
  std::unique_lock lock(streams().mutex);
  streams().all.add(stream);
  const auto hold = streams().hold;
  lock.unlock();
  if (hold != nullptr) stream->hold(hold);
  return stream;
}

std::vector<std::shared_ptr<Stream>> Stream::hold_all(const std::shared_ptr<Recording>& until) {
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard lock(streams().mutex);
    streams().hold = until;
    streams().all.append_to(all);
  }
  if (until != nullptr)
    for (const auto& stream : all) stream->hold(until);
  return all;
}

void Stream::hold(std::shared_ptr<Recording> until) {
  Lock lock(*this);
  hold_ = std::move(until);
  if (state_ == State::kIdle) (void)step_over_waits();  // parks it
}

bool Stream::wait_until_still(Recording::Clock::time_point deadline) {
  Lock lock(*this);
  while (touching_ && !Running::in_stream(id_)) {
    if (Recording::Clock::now() >= deadline || Executor::stopped()) return false;
    wake_at_ = std::min(wake_at_, finished_ + 1);
    lock.wait_until(std::min(deadline, Recording::Clock::now() + kShutdownPoll));
  }
  return true;
}

Stream::Stream(int device, StreamConfig config) : device_(device), id_(next_id++), config_(config) {}

Stream::~Stream() {
  gone_->store(true, std::memory_order_release);
  gone_->notify_all();
}

void Stream::set_stop_on_failure(bool stop) {
  std::lock_guard lock(mutex_);
  config_.stop_on_failure = stop;
}

// [docs:stream-launch]
void Stream::launch(Lane lane, UniqueFunction task, const Writes& writes) {
  NotedWrites noted;
  Lock lock = lock_usable();
  noted.note(writes);
  if (lane == Lane::kShort && state_ == State::kIdle) {
    run_in_caller(lock, {lane, std::move(task)});
  } else {
    enqueue(lock, {lane, std::move(task)});
  }
}
// [/docs]

// [docs:stream-call]
void Stream::call(Lane lane, const std::function<void()>& function, const Writes& writes) {
  NotedWrites noted;
  if (Running::in_stream(id_)) {  // the stream's next task is a part of the running one
    noted.note(writes);
    return function();
  }
  Lock lock = lock_usable();
  help_until(lock, enqueued_, std::nullopt);
  raise_error();
  noted.note(writes);
  if (state_ == State::kIdle && (lane == Lane::kShort || Executor::on_compute_thread())) {
    std::exception_ptr error;
    run_in_caller(lock, {lane, [&] {
                           try {
                             function();
                           } catch (...) {
                             error = std::current_exception();
                           }
                         }});
    if (error) std::rethrow_exception(error);
  } else {
    call_elsewhere(lock, lane, function);
  }
}
// [/docs]

/// The task refers to the caller's frame, which therefore stays until the task has run or never will.
void Stream::call_elsewhere(Lock& lock, Lane lane, const std::function<void()>& function) {
  enum Progress { kQueued, kStarted, kCancelled };
  struct Shared {
    std::atomic<int> progress = kQueued;
    std::exception_ptr error;
    bool move_on(Progress to) {
      int queued = kQueued;
      return progress.compare_exchange_strong(queued, to);
    }
  };
  const auto shared = std::make_shared<Shared>();
  const auto run = [shared, &function] {
    if (!shared->move_on(kStarted)) return;
    try {
      function();
    } catch (...) {
      shared->error = std::current_exception();
    }
  };
  const uint64_t ticket = enqueue(lock, {lane, run});
  while (finished_ < ticket) {
    try {
      help_until(lock, ticket, std::nullopt);
    } catch (...) {  // shut down meanwhile
      if (shared->move_on(kCancelled)) throw;
      lock.wait_until(Recording::Clock::now() + kShutdownPoll);
    }
  }
  if (shared->error) std::rethrow_exception(shared->error);
  if (shared->progress != kStarted) {
    raise_error();
    raise(ErrorCode::kAborted, "work of stream ", id_, " of device ", device_, " was dropped");
  }
}

/// Runs `task` at once on the idle stream, then hands over what was enqueued meanwhile.
void Stream::run_in_caller(Lock& lock, Task task) {
  task.enqueued_by = this_thread();
  task.threads = thread_limit(device_);
  state_ = State::kRunning;
  ++enqueued_;
  task.traced = Trace::begin(device_, id_);
  execute(lock, std::move(task));
  if (step_over_waits()) post();
}

void Stream::wait(std::shared_ptr<Recording> recording, Duration limit) {
  if (recording->done()) return;
  Lock lock = lock_usable();
  enqueue(lock, {.wait_for = std::move(recording), .wait_limit = limit});
}

std::shared_ptr<Recording> Stream::record(std::function<void()> then) {
  auto recording = std::make_shared<Recording>(id_, std::move(then));
  Lock lock = lock_usable();
  enqueue(lock, {.complete = recording});
  return recording;
}

bool Stream::idle() const {
  std::lock_guard lock(mutex_);
  return finished_ == enqueued_;
}

bool Stream::idle_but_for_caller() const {
  std::lock_guard lock(mutex_);
  return finished_ + (Running::in_stream(id_) ? 1 : 0) >= enqueued_;
}

bool Stream::synchronize(std::optional<Duration> limit) {
  Running::require_outside_stream(id_, "synchronize");
  Lock lock = lock_usable();
  if (!help_until(lock, enqueued_, limit)) return false;
  raise_error();
  return true;
}

void Stream::abort(std::optional<ErrorCode> reason) {
  Lock lock = lock_usable();
  bool dropped = false;
  std::vector<UniqueFunction> discarded;  // their destructors run without the lock
  for (Task& task : queue_) {
    dropped |= static_cast<bool>(task.run);
    discarded.push_back(std::move(task.run));
    task.wait_for = nullptr;
    task.lane = Lane::kShort;
  }
  if (dropped && reason && !error_)
    error_ = std::make_exception_ptr(
        Error(*reason, concat("work of stream ", id_, " of device ", device_, " was dropped by an abort")));
  if (state_ == State::kParked) {
    state_ = State::kRunning;
    drain(lock, Lane::kShort);
  }
  lock.unlock();
}

Stream::Lock Stream::lock_usable() {
  Device::require_usable();
  return Lock(*this);
}

uint64_t Stream::enqueue(Lock& lock, Task task) {
  task.enqueued_by = this_thread();
  task.threads = thread_limit(device_);
  const bool needs_thread = static_cast<bool>(task.run);
  if (needs_thread) task.traced = Trace::begin(device_, id_);
  queue_.push_back(std::move(task));
  const uint64_t ticket = ++enqueued_;
  if (state_ == State::kIdle) {
    if (needs_thread) {
      post();
    } else {
      state_ = State::kRunning;
      drain(lock, Lane::kShort, ticket);
    }
  }
  return ticket;
}

/// Hands the stream, whose queue is not empty, to the threads that may run its next task.
void Stream::post() {
  state_ = State::kPosted;
  Executor::instance().post(shared_from_this(), queue_.front().lane);
}

bool Stream::may_run(Lane thread, Lane task) { return task == Lane::kShort || task == thread; }

// [docs:stream-drain]
/// Runs tasks in order until the queue is empty, the ticket `until` is done, or the next task must wait or
/// needs another thread; leaves the stream in the state that fits. Expects kRunning.
void Stream::drain(Lock& lock, Lane thread, uint64_t until) {
  bool give_way = false;
  while (step_over_waits()) {
    if (finished_ >= until || give_way || !may_run(thread, queue_.front().lane)) return post();
    Task task = std::move(queue_.front());
    queue_.pop_front();
    execute(lock, std::move(task));
    give_way = thread == Lane::kParallel && Executor::instance().compute_contended();
  }
}
// [/docs]

/// Removes the waits at the front that are over. True when a task follows; else the stream is parked or idle.
bool Stream::step_over_waits() {
  if (hold_ != nullptr && !hold_->done_or_resume_later(shared_from_this())) {
    state_ = State::kParked;
    return false;
  }
  hold_ = nullptr;
  while (!queue_.empty() && queue_.front().wait_for) {
    if (!queue_.front().wait_for->done_or_resume_later(shared_from_this())) {
      watch_limit(queue_.front());
      state_ = State::kParked;
      return false;
    }
    queue_.pop_front();
    finished_one();
  }
  if (queue_.empty()) state_ = State::kIdle;
  return !queue_.empty();
}

/// Runs one task without the lock. A recording is reached, and its ticket done, in one step under the lock:
/// whoever sees the one sees the other.
void Stream::execute(Lock& lock, Task task) {
  if (task.complete) {
    const auto waiting = task.complete->reach(error_);
    finished_one();
    lock.unlock();
    task.complete->resume(waiting);
    lock.lock();
    return;
  }
  const bool skip = error_ && config_.stop_on_failure && !task.report;
  std::exception_ptr failure;
  touching_ = task.lane != Lane::kHost;
  lock.unlock();
  const auto end = [&] {
    task.run.reset();  // what the closure owns may be large, or need other locks
    lock.lock();
    touching_ = false;
    end_task(task, failure);
  };
  if (task.run && !skip) try {
      failure = failure_of(task);
    } catch (...) {  // pthread_exit in user code: the task is over, and with it this thread
      end();
      if (step_over_waits()) post();
      throw;
    }
  end();
}

/// Runs the task; what it leaves when it throws or takes too long, or null.
std::exception_ptr Stream::failure_of(Task& task) {
  const Running frame(id_, device_);
  const ThreadLimit threads(static_cast<int>(task.threads));
  std::optional<Executor::InUserCode> user_code;
  if (task.lane == Lane::kHost) user_code.emplace();
  const Duration limit = task.lane == Lane::kHost ? Duration::zero() : time_limits().task.load();
  const auto start = limit != Duration::zero() ? Recording::Clock::now() : Recording::Clock::time_point();
  if (task.traced) Trace::started(*task.traced);
  std::exception_ptr failure;
  try {
    task.run();
  } catch (__cxxabiv1::__forced_unwind&) {
    throw;
  } catch (...) {
    failure = std::current_exception();
  }
  if (task.traced) Trace::ended(std::move(task.traced));
  return failure == nullptr && limit != Duration::zero() ? overrun(start, limit) : failure;
}

/// The task that `failure` ended, where there is one, is done once that was told.
void Stream::end_task(const Task& task, std::exception_ptr failure) {
  if (failure && !error_) error_ = failure;
  if (!failure || observer().get() == nullptr) return finished_one();
  const TaskFailure told = {finished_ + 1, id_, device_, task.enqueued_by, std::move(failure)};
  queue_.push_front({.lane = Lane::kHost, .run = [told] { tell(told); }, .report = true});
}

void Stream::finished_one() {
  ++finished_;
  if (finished_ >= wake_at_) {
    wake_at_ = UINT64_MAX;
    wake_ = true;
  }
}

/// Blocks until `ticket` is done; runs tasks that need no other thread itself.
bool Stream::help_until(Lock& lock, uint64_t ticket, std::optional<Duration> limit) {
  using Clock = Recording::Clock;
  if (finished_ >= ticket) return true;
  const Lane thread = Executor::on_compute_thread() ? Lane::kParallel : Lane::kShort;
  const auto deadline = Clock::now() + limit.value_or(Duration::zero());
  while (finished_ < ticket) {
    require(!Executor::stopped(), ErrorCode::kNotInitialized, "synchronize: the device was shut down");
    if (state_ == State::kPosted && may_run(thread, queue_.front().lane)) {
      state_ = State::kRunning;
      drain(lock, thread, ticket);
      continue;
    }
    if (limit && Clock::now() >= deadline) return false;
    if (Executor::instance().help_if_starved(lock)) continue;
    wake_at_ = std::min(wake_at_, ticket);
    const auto slice = Clock::now() + kShutdownPoll;
    lock.wait_until(limit ? std::min(deadline, slice) : slice);
  }
  return true;
}

/// The executor's side of post(). The stream may have been taken by a thread that waits for it meanwhile.
void Stream::run_posted(Lane thread) {
  Lock lock(*this);
  if (state_ != State::kPosted) return;
  state_ = State::kRunning;
  drain(lock, thread);
}

void Stream::resume() {
  Lock lock(*this);
  if (state_ == State::kParked && step_over_waits()) post();
}

/// Sees to it that the wait at the front, which the stream parks on, is over after its limit.
void Stream::watch_limit(Task& wait) {
  const Duration limit = std::exchange(wait.wait_limit, Duration::zero());
  if (limit == Duration::zero()) return;
  Watcher::instance().watch([weak = weak_from_this(), recording = wait.wait_for, limit,
                             deadline = Recording::Clock::now() + limit] {
    if (recording->done()) return true;
    if (Recording::Clock::now() < deadline) return false;
    if (const auto stream = weak.lock()) stream->expire(recording, limit);
    return true;
  });
}

/// Ends the wait for `recording`, if it is what the stream is parked on, as a task that failed.
void Stream::expire(const std::shared_ptr<Recording>& recording, Duration limit) {
  Lock lock(*this);
  if (state_ != State::kParked || queue_.empty() || queue_.front().wait_for != recording) return;
  const auto failure = std::make_exception_ptr(
      Error(ErrorCode::kTimeout,
            concat("work of stream ", id_, " of device ", device_,
                   " waited for an event longer than the limit of ", limit.count() / 1000000, " ms")));
  const Task wait = std::move(queue_.front());
  queue_.pop_front();
  end_task(wait, failure);
  state_ = State::kRunning;
  if (step_over_waits()) post();
}

void Stream::raise_error() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace anynpu
