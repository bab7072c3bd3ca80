#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>

#include "runtime/handles.h"

namespace torch_npu {

/// How many devices there are; 0 where the runtime cannot tell. Starts none.
c10::DeviceIndex device_count() noexcept;

/// Raises, naming the ordinal, when there is no such device.
void check_device(int device);

/// True when that device was started in this very process.
bool is_started(int device);

/// The calling thread's device. A thread that has chosen none gets device 0, and so for C libraries that it
/// calls, too.
c10::DeviceIndex current_device();

/// The stream that the calling thread enqueues on for `device`. Starts no device.
c10::Stream current_stream(c10::DeviceIndex device);

/// The runtime's stream of a c10::Stream of device npu, and back. Id 0 is the device's default stream.
std::shared_ptr<anynpu::Stream> runtime_stream(const c10::Stream& stream);
c10::Stream c10_stream(anynpu::Stream& stream);

/// The handle of a stream, which the C interface accepts in the default context of its device (a stream that
/// was made elsewhere: in its own). Raises when it was destroyed there, or the device is reset.
void* handle_of_stream(const c10::Stream& stream);
/// The stream of a handle, whichever interface made it. Raises for what is none (any more).
c10::Stream stream_of_handle(const void* handle);

/// Makes an event that was never recorded (else: nothing) stand for `as`, of the current device. Its
/// eventId() is the handle that the C interface accepts; any other event gets one when it is first recorded.
void create_event(c10::Event& event, std::shared_ptr<anynpu::HandledEvent> as);

/// Milliseconds between the points of two events, by handle; null: never recorded.
double elapsed_ms(const void* start, const void* end);

/// Waits for all streams of `device`, interruptibly; raises the first error.
void synchronize_device(c10::DeviceIndex device);

}  // namespace torch_npu
