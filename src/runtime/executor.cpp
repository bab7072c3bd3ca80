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

#include "base/options.h"
#include "runtime/stream.h"
#include "runtime/watcher.h"

namespace anynpu {
namespace {

thread_local bool this_is_the_compute_thread = false;
std::atomic<bool> stopping = false;

/// How long a thread with nothing to do stays. A process whose first thread left with pthread_exit ends when
/// the last thread has.
constexpr auto kIdle = std::chrono::seconds(2);

const Option parallel_bytes(
    "ANYNPU_PARALLEL_BYTES", "1M",
    "from how many bytes of arguments on an operator that does as much for each as exp runs on all cores; "
    "below, it runs in the calling thread, because handing it over costs more than the other cores save");

}  // namespace

Lane lane_for(double bytes) {
  static const auto threshold = static_cast<double>(parallel_bytes.integer());
  return bytes < threshold ? Lane::kShort : Lane::kParallel;
}

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
    provide_thread();
    lock.unlock();  // or the thread wakes only to block on it
    work_.notify_one();
  }

  bool contended() const { return waiting_.load(std::memory_order_relaxed) != 0; }

  void enter_user_code() {
    std::lock_guard lock(mutex_);
    ++in_user_code_;
    provide_thread();
  }

  void leave_user_code() {
    std::lock_guard lock(mutex_);
    --in_user_code_;
  }

  /// Streams are ready, and the last thread that was needed could not be started.
  bool starved() const { return starved_.load(std::memory_order_relaxed) && contended(); }

  void help() {
    std::unique_lock lock(mutex_);
    provide_thread();
    if (!starved()) return;
    const auto stream = next();
    lock.unlock();
    stream->run_posted(lane_);
  }

  void stop(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    ready_.clear();
    waiting_.store(0, std::memory_order_relaxed);
    work_.notify_all();
    ended_.wait_until(lock, deadline, [&] { return running_ == 0; });
  }

 private:
  /// Starts a thread where streams are ready and each of the threads is in user code. With mutex_ held.
  void provide_thread() {
    if (ready_.empty() || threads_ > in_user_code_ || threads_ == most_) return;
    starved_.store(!start_thread(), std::memory_order_relaxed);
  }

  bool start_thread() {
    try {
      start_service_thread(name_, [this] { loop(); });
      ++threads_;
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  /// Takes the most urgent stream. With mutex_ held.
  std::shared_ptr<Stream> next() {
    std::shared_ptr<Stream> stream = std::move(ready_.front());
    ready_.pop_front();
    waiting_.store(ready_.size(), std::memory_order_relaxed);
    return stream;
  }

  /// For its life, the thread counts as one that runs, or as one that there is: also when user code ends the
  /// thread with pthread_exit.
  struct Counted {
    Counted(Threads& threads_of, size_t& count_) : threads(threads_of), count(count_) {}
    ~Counted() {
      std::lock_guard lock(threads.mutex_);
      --count;
      threads.provide_thread();
      threads.ended_.notify_all();
    }
    Counted(const Counted&) = delete;
    Threads& threads;
    size_t& count;
  };

  void loop() {
    this_is_the_compute_thread = lane_ == Lane::kParallel;
    const Counted one_thread(*this, threads_);
    while (true) {
      std::unique_lock lock(mutex_);
      work_.wait_for(lock, kIdle, [&] { return stopping || !ready_.empty(); });
      if (stopping || ready_.empty()) return;
      const auto stream = next();
      ++running_;
      lock.unlock();
      const Counted one_running(*this, running_);
      stream->run_posted(lane_);
    }
  }

  const Lane lane_;
  const char* const name_;
  const size_t most_;
  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::deque<std::shared_ptr<Stream>> ready_;
  std::atomic<size_t> waiting_ = 0;
  std::atomic<bool> starved_ = false;
  size_t threads_ = 0, in_user_code_ = 0, running_ = 0;
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

Executor::InUserCode::InUserCode() { instance().service_->enter_user_code(); }

Executor::InUserCode::~InUserCode() { instance().service_->leave_user_code(); }

bool Executor::starved() const {
  return compute_->starved() || service_->starved() || Watcher::instance().starved();
}

void Executor::help() {
  if (compute_->starved()) compute_->help();
  if (service_->starved()) service_->help();
  if (Watcher::instance().starved()) Watcher::instance().help();
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
