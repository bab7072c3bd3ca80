#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "abi/call.h"
#include "runtime/executor.h"

namespace anynpu::abi {

/// A time limit given in milliseconds, where -1 means none.
inline std::optional<Duration> limit_of(int32_t timeout) {
  check(timeout >= -1, ACL_ERROR_INVALID_PARAM, "timeout is ", timeout,
        "; -1 (for ever) and milliseconds from 0 on are accepted");
  if (timeout == -1) return std::nullopt;
  return std::chrono::milliseconds(timeout);
}

}  // namespace anynpu::abi
