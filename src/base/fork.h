#pragma once

#include <atomic>
#include <mutex>

namespace anynpu {

/// Makes every fork take place while `mutex`, which must live for ever, is held: what it guards is whole in
/// the child, where it is free. For mutexes with which no other such mutex is held.
void hold_in_forks(std::mutex& mutex);

/// What made_once() holds; a fork takes place while it is held, too.
std::recursive_mutex& making();

/// The object at `place`, which the first caller makes with `make` and which is never destroyed. Unlike a
/// function-local static it is never found half made by a fork; and `make` may make others.
template <class T, class Make>
T& made_once(std::atomic<T*>& place, const Make& make) {
  if (T* made = place.load(std::memory_order_acquire)) return *made;
  std::lock_guard lock(making());
  if (place.load(std::memory_order_relaxed) == nullptr) place.store(make(), std::memory_order_release);
  return *place.load(std::memory_order_relaxed);
}

}  // namespace anynpu
