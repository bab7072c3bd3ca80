#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "runtime/stream.h"

namespace torch_npu {

/// How many devices there are; 0 where the runtime cannot tell. Starts none.
c10::DeviceIndex device_count() noexcept;

/// Raises, naming the ordinal, when there is no such device.
void check_device(c10::DeviceIndex device);

/// True when that device was started in this very process.
bool is_started(c10::DeviceIndex device);

/// The calling thread's device. A thread that has chosen none gets device 0, and so for C libraries that it
/// calls, too.
c10::DeviceIndex current_device();

/// The stream that the calling thread enqueues on for `device`. Starts no device.
c10::Stream current_stream(c10::DeviceIndex device);

/// The runtime's stream of a c10::Stream of device npu, and back. Id 0 is the device's default stream.
std::shared_ptr<anynpu::Stream> runtime_stream(const c10::Stream& stream);
c10::Stream c10_stream(anynpu::Stream& stream);

/// The stream with that native handle, of those that a c10::Stream named before. Raises where there is none.
c10::Stream stream_of_handle(const void* handle);

/// Milliseconds between the points of two events, null where they were never recorded; they are
/// anynpu::Events.
double elapsed_ms(const void* start, const void* end);

/// Waits for all streams of `device`, interruptibly; raises the first error.
void synchronize_device(c10::DeviceIndex device);

}  // namespace torch_npu
