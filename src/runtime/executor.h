#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace anynpu {

class Stream;

/// Which threads may run a piece of work.
enum class Lane : uint8_t {
  kShort,  ///< serial work of some microseconds that never blocks: any thread, also the one that enqueues it
           ///< on an idle stream or waits for it
  kParallel,  ///< work that opens parallel regions: the one compute thread of the process, because every
              ///< further thread that opens OpenMP regions brings a second pool that spins against the first
  kHost,      ///< user code that may block: a service thread, never the caller's
};

/// The lane of work that reads and writes so many bytes, or does as much: the parallel one from option
/// ANYNPU_PARALLEL_BYTES on.
Lane lane_for(double bytes);

using Duration = std::chrono::nanoseconds;

/// Blocked threads look this often whether the runtime was shut down under them.
constexpr Duration kShutdownPoll = std::chrono::milliseconds(100);

/// Starts a detached thread of that name which takes no signals: those belong to the user's threads, Python
/// handles them in its main thread only. Raises kInternal where the system refuses.
void start_service_thread(const char* name, std::function<void()> body);

/// The threads of the runtime: at most one compute thread, and service threads that are added while all
/// others are in user code, so that what blocks in one stream never holds up another stream. Streams are
/// handed over whole: whichever thread takes one runs its queue until it is empty, must wait for an event, or
/// needs the other kind of thread. Threads with nothing to do go again.
///
/// Where the system gives no thread, those that wait for work run it themselves (help_if_starved), so that it
/// is delayed until somebody waits, and never lost.
class Executor {
 public:
  static Executor& instance();

  /// Makes `stream`, which has work and no thread, run on a thread that may run `lane`.
  void post(std::shared_ptr<Stream> stream, Lane lane);

  /// For its life the calling thread is in user code that may block: others serve the streams.
  class InUserCode {
   public:
    InUserCode();
    ~InUserCode();
    InUserCode(const InUserCode&) = delete;
  };

  /// Where streams are ready, or the watcher watches, and no thread could be started for them: gives `lock`
  /// up for a while, tries again, or else does a part of that in the calling thread. False where nothing is
  /// so.
  template <class Lock>
  bool help_if_starved(Lock& lock) {
    if (!starved()) return false;
    lock.unlock();
    help();
    lock.lock();
    return true;
  }

  static bool on_compute_thread();
  /// True where another stream waits for the compute thread, so that the running one should give way.
  bool compute_contended() const;

  /// Lets running tasks end (at most `limit`), and starts no others. Idempotent; for the exit of the process.
  void shutdown(Duration limit);
  static bool stopped();  ///< shutdown() was called

 private:
  class Threads;
  Executor();
  bool starved() const;
  void help();
  Threads *compute_, *service_;  // never destroyed: their threads are detached
};

}  // namespace anynpu
