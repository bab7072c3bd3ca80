#include "runtime/executor.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/stream.h"

namespace anynpu {
namespace {

thread_local bool this_is_the_compute_thread = false;
std::atomic<bool> stopping = false;

/// How long a thread with nothing to do stays. A process whose first thread left with pthread_exit ends when
/// the last thread has.
constexpr auto kIdle = std::chrono::seconds(2);

}  // namespace

void start_service_thread(const char* name, std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string refusal;
  try {
    std::thread([name, body = std::move(body)] {
      pthread_setname_np(pthread_self(), name);
      body();
    }).detach();
  } catch (const std::system_error& failure) {
    refusal = failure.what();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  require(refusal.empty(), ErrorCode::kInternal, "the runtime cannot start a thread: ", refusal);
}

/// Threads of one kind and the streams that wait for one of them, the most urgent first.
class Executor::Threads {
 public:
  Threads(Lane lane, const char* name, size_t most) : lane_(lane), name_(name), most_(most) {}

  void post(std::shared_ptr<Stream> stream) {
    std::unique_lock lock(mutex_);
    if (stopping) return;
    const int priority = stream->config().priority;
    auto place = std::find_if(ready_.begin(), ready_.end(),
                              [&](const auto& other) { return priority < other->config().priority; });
    ready_.insert(place, std::move(stream));
    waiting_.store(ready_.size(), std::memory_order_relaxed);
    if (ready_.size() > idle_ && threads_ < most_) return start_thread();
    lock.unlock();  // or the thread wakes only to block on it
    work_.notify_one();
  }

  bool contended() const { return waiting_.load(std::memory_order_relaxed) != 0; }

  void stop(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    ready_.clear();
    work_.notify_all();
    ended_.wait_until(lock, deadline, [&] { return running_ == 0; });
  }

 private:
  void start_thread() {
    try {
      start_service_thread(name_, [this] { loop(); });
      ++threads_;
    } catch (const Error&) {
      // With a thread of this kind at work the stream is only delayed; without one it would never run.
      if (threads_ == 0) throw;
    }
  }

  void loop() {
    this_is_the_compute_thread = lane_ == Lane::kParallel;
    std::unique_lock lock(mutex_);
    while (true) {
      if (!wait_for_work(lock)) break;
      std::shared_ptr<Stream> stream = std::move(ready_.front());
      ready_.pop_front();
      waiting_.store(ready_.size(), std::memory_order_relaxed);
      ++running_;
      lock.unlock();
      stream->run_posted(lane_);
      stream.reset();
      lock.lock();
      --running_;
    }
    --threads_;
    ended_.notify_all();
  }

  /// False when this thread should end.
  bool wait_for_work(std::unique_lock<std::mutex>& lock) {
    ++idle_;
    const auto has_work = [&] { return stopping || !ready_.empty(); };
    work_.wait_for(lock, kIdle, has_work);
    --idle_;
    return !stopping && !ready_.empty();
  }

  const Lane lane_;
  const char* const name_;
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::deque<std::shared_ptr<Stream>> ready_;
  std::atomic<size_t> waiting_ = 0;
  size_t idle_ = 0, threads_ = 0, running_ = 0;
};

Executor::Executor()
    : compute_(new Threads(Lane::kParallel, "npu-compute", 1)),
      service_(new Threads(Lane::kHost, "npu-service", SIZE_MAX)) {}

Executor& Executor::instance() {
  static auto* executor = new Executor;
  return *executor;
}

void Executor::post(std::shared_ptr<Stream> stream, Lane lane) {
  (lane == Lane::kParallel ? compute_ : service_)->post(std::move(stream));
}

bool Executor::on_compute_thread() { return this_is_the_compute_thread; }

bool Executor::compute_contended() const { return compute_->contended(); }

bool Executor::stopped() { return stopping; }

void Executor::shutdown(Duration limit) {
  stopping = true;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  compute_->stop(deadline);
  service_->stop(deadline);
}

}  // namespace anynpu
