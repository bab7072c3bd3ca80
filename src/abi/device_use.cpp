#include "abi/device_use.h"

#include <exception>
#include <memory>

#include "abi/call.h"
#include "abi/handle.h"
#include "runtime/device.h"

namespace anynpu::abi {
namespace {

/// When it ends, after an error too, the handles of released contexts and of their streams end.
struct ForgetReleased {
  ~ForgetReleased() {
    take_handles_if(HandleKind::kStream, [](const void* object) {
      return static_cast<const StreamInContext*>(object)->context->released();
    });
    take_handles_if(HandleKind::kContext,
                    [](const void* object) { return static_cast<const Context*>(object)->released(); });
  }
};

}  // namespace

void unuse_device(int device, bool all) {
  const ForgetReleased forget;
  Context::unuse_default(device, all);
  if (Context::uses_of_default(device) == 0)
    take_handles_if(HandleKind::kPhysicalMemory, [device](const void* object) {
      return static_cast<const PhysicalMemory*>(object)->device() == device;
    });
}

void end_all_devices() {
  if (Device::forked() || Executor::stopped()) return;  // there is nothing left to give back
  const ForgetReleased forget;
  std::exception_ptr error;
  const auto go_on = [&](auto step) {  // one device's error leaves no other one in use
    try {
      step();
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  };
  for (const auto& object : handles_of(HandleKind::kContext)) {
    const auto context = std::static_pointer_cast<Context>(object);
    if (!context->is_default()) go_on([&] { context->release(); });
  }
  for (int device = 0; device < device_count(); ++device)
    if (Device::started(device)) go_on([&] { Context::end_default(device); });
  if (error) std::rethrow_exception(error);
}

void destroy_context(const void* handle, const char* argument) {
  const auto context = abi::handle<Context>(handle, argument);
  check(!context->is_default(), ACL_ERROR_INVALID_PARAM, argument,
        " is the default one of its device; aclrtResetDevice ends it");
  context->require_outside_tasks();
  const ForgetReleased forget;
  taken<Context>(handle, argument)->release();  // of several threads one does it
}

}  // namespace anynpu::abi
