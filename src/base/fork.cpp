#include "base/fork.h"

#include <pthread.h>

#include <new>
#include <vector>

namespace anynpu {
namespace {

struct Held {
  std::mutex mutex;
  std::vector<std::mutex*> mutexes;
};

Held& held() {
  static auto* all = [] {
    pthread_atfork(
        [] {
          held().mutex.lock();
          for (std::mutex* mutex : held().mutexes) mutex->lock();
        },
        [] {
          for (std::mutex* mutex : held().mutexes) mutex->unlock();
          held().mutex.unlock();
        },
        [] {  // the threads that held and awaited them do not exist here
          for (std::mutex* mutex : held().mutexes) new (mutex) std::mutex;
          new (&held().mutex) std::mutex;
        });
    return new Held;
  }();
  return *all;
}

}  // namespace

void hold_in_forks(std::mutex& mutex) {
  std::lock_guard lock(held().mutex);
  held().mutexes.push_back(&mutex);
}

}  // namespace anynpu
