#include "torch_npu/csrc/errors.h"

#include <unistd.h>

#include <string>

#include "runtime/executor.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

[[noreturn]] void rest() {
  Unblocked unblocked;
  while (true) pause();
}

}  // namespace

void rethrow_as_c10(const anynpu::Error& error, const char* layer) {
  using anynpu::ErrorCode, anynpu::Executor;
  std::string named = std::string(layer) + " failed: " + error.what();
  switch (error.code()) {
    case ErrorCode::kOutOfMemory:
      C10_THROW_ERROR(OutOfMemoryError, error.what());
    case ErrorCode::kForked:
      C10_THROW_ERROR(Error, error.what());
    case ErrorCode::kUnsupported:
      C10_THROW_ERROR(NotImplementedError, std::move(named));
    case ErrorCode::kNotInitialized:
      if (Executor::stopped() && !on_main_thread() && !Executor::on_compute_thread()) rest();
      [[fallthrough]];
    default:
      C10_THROW_ERROR(Error, std::move(named));
  }
}

}  // namespace torch_npu
