#include "base/fork.h"

#include <pthread.h>

#include <new>
#include <vector>

namespace anynpu {
namespace {

struct Held {
  std::recursive_mutex making;  // taken first: whoever makes an object may take the others
  std::mutex mutex;
  std::vector<std::mutex*> mutexes;
};

Held& held() {
  static auto* all = [] {
    pthread_atfork(
        [] {
          held().making.lock();
          held().mutex.lock();
          for (std::mutex* mutex : held().mutexes) mutex->lock();
        },
        [] {
          for (std::mutex* mutex : held().mutexes) mutex->unlock();
          held().mutex.unlock();
          held().making.unlock();
        },
        [] {  // the threads that held and awaited them do not exist here
          for (std::mutex* mutex : held().mutexes) new (mutex) std::mutex;
          new (&held().mutex) std::mutex;
          new (&held().making) std::recursive_mutex;
        });
    return new Held;
  }();
  return *all;
}

/// Made when the library is loaded: no fork can find it half made.
[[maybe_unused]] const Held& made_at_load = held();

}  // namespace

std::recursive_mutex& making() { return held().making; }

void hold_in_forks(std::mutex& mutex) {
  std::lock_guard lock(held().mutex);
  held().mutexes.push_back(&mutex);
}

}  // namespace anynpu
