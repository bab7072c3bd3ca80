#include "abi/device_use.h"

#include "abi/handle.h"
#include "runtime/device.h"

namespace anynpu::abi {
namespace {

/// When it ends, after an error too, the handles of released contexts and of their streams end.
struct ForgetReleased {
  ~ForgetReleased() {
    take_handles_if(Kind::kStream, [](const void* object) {
      return static_cast<const StreamInContext*>(object)->context->released();
    });
    take_handles_if(Kind::kContext,
                    [](const void* object) { return static_cast<const Context*>(object)->released(); });
  }
};

}  // namespace

void unuse_device(int device, bool all) {
  const ForgetReleased forget;
  Context::unuse_default(device, all);
  if (Context::uses_of_default(device) == 0)
    take_handles_if(Kind::kPhysicalMemory, [device](const void* object) {
      return static_cast<const PhysicalMemory*>(object)->device() == device;
    });
}

void unuse_all_devices() {
  if (Device::forked() || Executor::stopped()) return;  // there is nothing left to give back
  for (int device = 0; device < device_count(); ++device)
    if (Context::uses_of_default(device) != 0) unuse_device(device, true);
}

void destroy_context(Context& context) {
  const ForgetReleased forget;
  context.release();
}

}  // namespace anynpu::abi
