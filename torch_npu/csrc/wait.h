#pragma once

#include <functional>

#include "runtime/stream.h"

namespace torch_npu {

/// What the language above wants done around a wait. Set once, at import; without it a wait just blocks.
struct WaitHooks {
  void* (*leave)();           ///< before blocking: gives up what others may need (the GIL), null if nothing
  void (*enter)(void*);       ///< takes back what leave() gave up
  void (*check_interrupt)();  ///< between the slices of a wait, in the main thread; throws to end the wait
};
void set_wait_hooks(const WaitHooks& hooks);

/// True in the thread that the process began with: the one that handles interrupts and runs the exit.
bool on_main_thread();

/// Holds for its lifetime that this thread has given up what others may need. May be nested.
class Unblocked {
 public:
  Unblocked();
  ~Unblocked();
  Unblocked(const Unblocked&) = delete;

 private:
  void* state_;
};

/// Calls `poll(limit)`, which waits for at most `limit` and says whether it is done, until it is done or the
/// user interrupts; the GIL is not held meanwhile.
void wait_until(const std::function<bool(anynpu::Duration limit)>& poll);

/// Waits for the work enqueued on `stream` so far, interruptibly; raises its error.
void wait_for_stream(anynpu::Stream& stream);

}  // namespace torch_npu
