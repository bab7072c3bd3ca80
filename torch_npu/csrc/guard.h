#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>

#include "runtime/stream.h"

namespace torch_npu {

/// The calling thread's device; a thread that has chosen none is on device 0.
c10::DeviceIndex current_device();

/// The runtime's stream of a c10::Stream of device npu, and back. Id 0 is the device's default stream.
std::shared_ptr<anynpu::Stream> runtime_stream(const c10::Stream& stream);
c10::Stream c10_stream(const anynpu::Stream& stream);

/// Waits for all streams of `device`, interruptibly; raises the first error.
void synchronize_device(c10::DeviceIndex device);

}  // namespace torch_npu
