#pragma once

#include <pthread.h>

#include <new>

namespace anynpu {

/// The calling thread's T, made at first use. Unlike a thread_local object it serves until the thread is
/// gone: destructors of other thread-local objects, and in the first thread exit handlers, run after those of
/// thread_local objects, and may still call the library.
template <class T>
T& thread_state() {
  static constinit thread_local T* state = nullptr;
  if (state == nullptr) [[unlikely]] {
    // A destructor that uses the state makes it anew, and is followed by a further round of destructors.
    static const pthread_key_t key = [] {
      pthread_key_t made = 0;
      if (pthread_key_create(&made, [](void* object) {
            state = nullptr;
            delete static_cast<T*>(object);
          }) != 0)
        throw std::bad_alloc();
      return made;
    }();
    T* made = new T;
    if (pthread_setspecific(key, made) != 0) {
      delete made;
      throw std::bad_alloc();
    }
    state = made;
  }
  return *state;
}

}  // namespace anynpu
