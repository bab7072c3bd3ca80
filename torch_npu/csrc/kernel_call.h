#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "ops/launch.h"
#include "runtime/stream.h"
#include "torch_npu/csrc/errors.h"

namespace torch_npu {

/// How many threads a kernel of that lane may use: in the short one only its own, because a parallel region
/// would make a second OpenMP pool beside the compute thread's; in the parallel one what
/// torch.set_num_threads said in the calling thread, and at most what the limits of cores allow it on
/// `device`.
int threads_for(anynpu::Lane lane, int device);

/// What PyTorch's CPU kernels need around them when they run on aliases of device memory. The tensors they
/// see are known to nobody else, so no dispatch key above the backends takes part. Their parallel regions
/// have `threads` threads.
class KernelScope {
 public:
  explicit KernelScope(int threads);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard below_autograd_;
  int omp_threads_ = 0, mkl_threads_ = 0;  // to go back to; 0: unchanged
};

/// Runs `kernel`, which writes no other device memory than `writes` says, in a KernelScope as the next task
/// of `stream` and returns when it is done; short ones run in the calling thread. Exceptions of the kernel
/// arrive unchanged.
void call_kernel(anynpu::Stream& stream, anynpu::Lane lane, const anynpu::Writes& writes,
                 const std::function<void()>& kernel);

/// Enqueues such a kernel and returns. What it refers to must stay valid, in the stream's order.
template <class Kernel>
void launch_kernel(anynpu::Stream& stream, anynpu::Lane lane, const anynpu::Writes& writes, Kernel kernel) {
  npu_call([&] {
    stream.launch(
        lane,
        [threads = threads_for(lane, stream.device()), kernel = std::move(kernel)]() mutable {
          KernelScope scope(threads);
          kernel();
        },
        writes);
  });
}

/// Enqueues a kernel of our own; `done` as ops::enqueue() has it.
void launch_kernel(anynpu::Stream& stream, anynpu::ops::Launch launch,
                   std::shared_ptr<std::atomic<bool>> done = nullptr);

/// The stream that the calling thread enqueues on for `device`.
anynpu::Stream& current_runtime_stream(c10::Device device);

}  // namespace torch_npu
