#include "torch_npu/csrc/wait.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "torch_npu/csrc/errors.h"

namespace torch_npu {
namespace {

/// How long a wait blocks before it looks for an interrupt: unnoticeable after Ctrl-C, and far rarer than
/// anything that costs.
constexpr auto kSlice = std::chrono::milliseconds(50);

WaitHooks hooks = {
    .leave = [] { return static_cast<void*>(nullptr); },
    .enter = [](void*) {},
    .check_interrupt = [] {},
};

}  // namespace

void set_wait_hooks(const WaitHooks& replacement) { hooks = replacement; }

bool on_main_thread() { return syscall(SYS_gettid) == getpid(); }

Unblocked::Unblocked() : state_(hooks.leave()) {}
Unblocked::~Unblocked() { hooks.enter(state_); }

void wait_until(const std::function<bool(anynpu::Duration limit)>& poll) {
  if (npu_call([&] { return poll(anynpu::Duration::zero()); })) return;
  Unblocked unblocked;
  while (!npu_call([&] { return poll(kSlice); }))
    if (on_main_thread()) hooks.check_interrupt();
}

void wait_for_stream(anynpu::Stream& stream) {
  wait_until([&](anynpu::Duration limit) { return stream.synchronize(limit); });
}

}  // namespace torch_npu
