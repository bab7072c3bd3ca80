#pragma once

#include <c10/util/Exception.h>

#include <utility>

#include "base/error.h"

namespace torch_npu {

/// Throws the c10 exception that a failure of the layers below is for a PyTorch user: kOutOfMemory is
/// c10::OutOfMemoryError and kForked a c10::Error, both with the runtime's own text, which users' retry and
/// hint code recognises; kUnsupported is c10::NotImplementedError; all else is c10::Error. The text of the
/// latter two begins "<layer> failed: ".
///
/// Does not return in a user's thread other than the main one that finds the runtime shut down, as it is
/// while the process exits: such a thread rests until the process is gone. Python ends a thread that asks for
/// its lock during the exit by unwinding it, which C++ frames on its stack turn into an abort of the process.
[[noreturn]] void rethrow_as_c10(const anynpu::Error& error, const char* layer);

/// Calls `function` with failures of the layers below turned into c10 exceptions. Whatever enters the runtime
/// from ATen does so in one.
template <class F>
decltype(auto) npu_call(F&& function, const char* layer = "NPU runtime") {
  try {
    return std::forward<F>(function)();
  } catch (const anynpu::Error& error) {
    rethrow_as_c10(error, layer);
  }
}

}  // namespace torch_npu
