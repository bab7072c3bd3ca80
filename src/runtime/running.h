#pragma once

#include <cstdint>

namespace anynpu {

/// For its life, the calling thread is in a task of a stream, which goes on only afterwards: waiting there
/// for later work of that stream would be waiting for oneself. Frames nest.
class Running {
 public:
  Running(uint64_t stream, int device);
  ~Running();
  Running(const Running&) = delete;

  static bool in_stream(uint64_t stream);
  /// Raises kInvalidArgument in a task of the stream, or of any stream of the device or of any device: `what`
  /// would wait for its own end.
  static void require_outside_stream(uint64_t stream, const char* what);
  static void require_outside_device(int device, const char* what);
  static void require_outside(const char* what);

 private:
  const uint64_t stream_;
  const int device_;
  const Running* const outer_;
};

}  // namespace anynpu
