#include "runtime/watcher.h"

#include <algorithm>
#include <iterator>
#include <utility>

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
  if (!running_) start_service_thread("npu-watch", [this] { loop(); });
  running_ = true;
  looks_.push_back(std::move(look));
  added_.notify_one();
}

void Watcher::loop() {
  std::chrono::microseconds interval = kShortest;
  std::unique_lock lock(mutex_);
  while (!Executor::stopped()) {
    if (looks_.empty() && !added_.wait_for(lock, kIdle, [&] { return !looks_.empty(); })) break;
    auto looks = std::exchange(looks_, {});
    lock.unlock();
    std::erase_if(looks, [](const auto& look) { return look(); });
    lock.lock();
    bool news = !looks_.empty();
    looks_.insert(looks_.end(), std::make_move_iterator(looks.begin()), std::make_move_iterator(looks.end()));
    const size_t known = looks_.size();
    if (known == 0) continue;
    news = added_.wait_for(lock, interval, [&] { return looks_.size() != known; }) || news;
    interval = news ? kShortest : std::min<std::chrono::microseconds>(interval * 5 / 4, kLongest);
  }
  running_ = false;
}

}  // namespace anynpu
