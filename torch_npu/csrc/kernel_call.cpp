#include "torch_npu/csrc/kernel_call.h"

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>
#include <omp.h>

#include <algorithm>

#include "runtime/device.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/wait.h"

// MKL lies inside libtorch_cpu where PyTorch is built with it; otherwise this is null.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int count);

namespace torch_npu {
namespace {

/// Ends the OpenMP pool that the calling thread may have from work on CPU tensors; its next region makes one
/// anew. Where all pools together have more threads than there are cores, libgomp lets none of them spin, and
/// every parallel region of the process has to wake its threads: three times as long for a small one.
void end_own_pool() { omp_pause_resource(omp_pause_soft, omp_get_initial_device()); }

}  // namespace

using anynpu::Lane;
using anynpu::Stream;
using anynpu::Writes;

int threads_for(Lane lane, int device) {
  if (lane == Lane::kShort) return 1;
  const auto limit = static_cast<int>(anynpu::thread_limit(device));
  return limit == 0 ? at::get_num_threads() : std::min(limit, at::get_num_threads());
}

KernelScope::KernelScope(int threads)
    : below_autograd_(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset) {
  const int threads_now = at::get_num_threads();  // in a thread's first call, PyTorch sets its number here
  if (threads == threads_now) return;
  omp_threads_ = threads_now;
  omp_set_num_threads(threads);
  if (MKL_Set_Num_Threads_Local != nullptr) mkl_threads_ = MKL_Set_Num_Threads_Local(threads);
}

KernelScope::~KernelScope() {
  if (omp_threads_ == 0) return;
  omp_set_num_threads(omp_threads_);
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(mkl_threads_);
}

// [docs:kernel-call]
void call_kernel(Stream& stream, Lane lane, const Writes& writes, const std::function<void()>& kernel) {
  if (!stream.idle()) wait_for_stream(stream);
  if (lane == Lane::kShort) {
    npu_call([&] {
      stream.call(
          lane,
          [&] {
            KernelScope scope(threads_for(lane, stream.device()));
            kernel();
          },
          writes);
    });
    return;
  }
  const int threads = threads_for(lane, stream.device());
  const at::ThreadLocalState state;
  c10::WarningHandler* const warnings = c10::WarningUtils::get_warning_handler();
  Unblocked unblocked;
  if (!anynpu::Executor::on_compute_thread()) end_own_pool();
  npu_call([&] {
    stream.call(
        lane,
        [&] {
          at::ThreadLocalStateGuard as_caller(state);
          c10::WarningUtils::WarningHandlerGuard warn_there(warnings);
          KernelScope scope(threads);
          kernel();
        },
        writes);
  });
}
// [/docs]

void launch_kernel(Stream& stream, anynpu::ops::Launch launch, std::shared_ptr<std::atomic<bool>> done) {
  const bool parallel = anynpu::lane_for(launch.bytes()) == Lane::kParallel;
  if (parallel && !anynpu::Executor::on_compute_thread()) end_own_pool();
  npu_call([&] {
    anynpu::ops::enqueue(stream, std::move(launch), threads_for(Lane::kParallel, stream.device()),
                         std::move(done));
  });
}

Stream& current_runtime_stream(c10::Device device) {
  return npu_call([&]() -> Stream& { return anynpu::current_stream(device.index()); });
}

}  // namespace torch_npu
