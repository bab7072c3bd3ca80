#include "runtime/running.h"

#include "base/error.h"

namespace anynpu {
namespace {

constinit thread_local const Running* innermost = nullptr;

}  // namespace

Running::Running(uint64_t stream, int device) : stream_(stream), device_(device), outer_(innermost) {
  innermost = this;
}

Running::~Running() { innermost = outer_; }

bool Running::in_stream(uint64_t stream) {
  for (const Running* frame = innermost; frame != nullptr; frame = frame->outer_)
    if (frame->stream_ == stream) return true;
  return false;
}

void Running::require_outside_stream(uint64_t stream, const char* what) {
  require(!in_stream(stream), ErrorCode::kInvalidArgument, what, ": a task of stream ", stream,
          " waits for its own stream, and so for itself");
}

void Running::require_outside_device(int device, const char* what) {
  for (const Running* frame = innermost; frame != nullptr; frame = frame->outer_)
    require(frame->device_ != device, ErrorCode::kInvalidArgument, what, ": a task of stream ",
            frame->stream_, " waits for all work of its own device ", device,
            ", and so for itself; nothing was done");
}

void Running::require_outside(const char* what) {
  require(innermost == nullptr, ErrorCode::kInvalidArgument, what, ": a task of stream ",
          innermost != nullptr ? innermost->stream_ : 0,
          " waits for all work of all devices, and so for itself; nothing was done");
}

}  // namespace anynpu
