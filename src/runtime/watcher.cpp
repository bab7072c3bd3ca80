#include "runtime/watcher.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/executor.h"

namespace anynpu {
namespace {

using namespace std::chrono_literals;

constexpr auto kShortest = 50us, kLongest = 1000us;
constexpr auto kIdle = 2s;

}  // namespace

Watcher& Watcher::instance() {
  static auto* watcher = new Watcher;  // outlives every thread
  return *watcher;
}

void Watcher::watch(std::function<bool()> look) {
  std::lock_guard lock(mutex_);
  looks_.push_back(std::move(look));
  provide_thread();
  added_.notify_one();
}

void Watcher::help() {
  Lock lock(mutex_);
  provide_thread();
  if (!starved()) return;
  look_at_all(lock);
  provide_thread();
  lock.unlock();
  std::this_thread::sleep_for(kShortest);
}

/// Sees to it that there is a thread where something is watched. With mutex_ held.
void Watcher::provide_thread() {
  if (!running_ && !looks_.empty()) try {
      start_service_thread("npu-watch", [this] { loop(); });
      running_ = true;
    } catch (const Error&) {  // the system gives none
    }
  starved_.store(!running_ && !looks_.empty(), std::memory_order_relaxed);
}

/// Calls every look and keeps those that are to be called again. True when others came meanwhile.
bool Watcher::look_at_all(Lock& lock) {
  auto looks = std::exchange(looks_, {});
  lock.unlock();
  std::erase_if(looks, [](const auto& look) { return look(); });
  lock.lock();
  const bool news = !looks_.empty();
  looks_.insert(looks_.end(), std::make_move_iterator(looks.begin()), std::make_move_iterator(looks.end()));
  return news;
}

void Watcher::loop() {
  std::chrono::microseconds interval = kShortest;
  Lock lock(mutex_);
  while (!Executor::stopped()) {
    if (looks_.empty() && !added_.wait_for(lock, kIdle, [&] { return !looks_.empty(); })) break;
    bool news = look_at_all(lock);
    const size_t known = looks_.size();
    if (known == 0) continue;
    news = added_.wait_for(lock, interval, [&] { return looks_.size() != known; }) || news;
    interval = news ? kShortest : std::min<std::chrono::microseconds>(interval * 5 / 4, kLongest);
  }
  running_ = false;
}

}  // namespace anynpu
