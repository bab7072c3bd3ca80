#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/unique_function.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace anynpu {

/// Callbacks that a thread of the user's choice runs. A stream is subscribed to one thread (a thread may
/// serve many streams); a callback reaches its thread in the stream's order, and the thread runs one whenever
/// it asks. No thread of the runtime waits meanwhile. Thread-safe.
class Callbacks {
 public:
  static Callbacks& instance();

  /// Raises kAlreadySubscribed when the stream has a thread.
  void subscribe(uint64_t thread, const Stream& stream);
  /// Raises kStreamNotSubscribed when that is not the stream's thread, kInvalidArgument while callbacks that
  /// were launched on the stream have not run: nobody would run them.
  void unsubscribe(uint64_t thread, const Stream& stream);

  /// Ends the stream's subscription, when it has one, with the stream. Callbacks that were launched still
  /// reach their thread.
  void end(const Stream& stream);

  /// Enqueues `function`; with `block`, what is enqueued on the stream later starts after it ran. Raises
  /// kStreamNotSubscribed.
  void launch(Stream& stream, UniqueFunction function, bool block);

  /// Runs the next callback that reached `thread`, waiting for one at most `limit`; false when that passed.
  /// An exception of the callback arrives here. Raises kThreadNotSubscribed, also when the last subscription
  /// ends meanwhile.
  bool run_next(uint64_t thread, std::optional<Duration> limit);

 private:
  struct Subscription {
    uint64_t thread;
    int outstanding = 0;  // launched, and neither run nor dropped
    bool ended = false;   // with the last of those the thread has a stream less
  };
  /// Counts a callback as outstanding for as long as it exists.
  class Outstanding {
   public:
    explicit Outstanding(std::shared_ptr<Subscription> subscription);  ///< with mutex_ held
    Outstanding(Outstanding&&) noexcept = default;
    ~Outstanding();

   private:
    std::shared_ptr<Subscription> subscription_;
  };
  /// Completes the recording at its end: a stream that waits for a callback goes on also when it was dropped.
  struct CompletesAtEnd {
    std::shared_ptr<Recording> recording;
    explicit CompletesAtEnd(std::shared_ptr<Recording> recording_) : recording(std::move(recording_)) {}
    CompletesAtEnd(CompletesAtEnd&&) noexcept = default;
    ~CompletesAtEnd() {
      if (recording != nullptr) recording->complete(nullptr);
    }
  };
  struct Callback {
    CompletesAtEnd ran;  // the last to be destroyed: it is not outstanding any more when the stream goes on
    UniqueFunction function;
    uint64_t holds;  // the stream that waits for it, or 0
    int device;
    Outstanding outstanding;
  };
  struct Thread {
    int streams = 0;
    std::deque<Callback> ready;
  };

  void thread_has_one_less(uint64_t thread);  ///< with mutex_ held
  void deliver(uint64_t thread, Callback callback);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::shared_ptr<Subscription>> subscriptions_;  // by stream id
  std::unordered_map<uint64_t, Thread> threads_;
};

}  // namespace anynpu
