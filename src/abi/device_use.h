#pragma once

#include "runtime/context.h"

namespace anynpu::abi {

/// Takes one use of the device's default context back, or all (see Context::unuse_default), and ends the
/// handles of what goes with it.
void unuse_device(int device, bool all);

/// Ends all contexts of all started devices, with what goes with them, and then raises the first error.
void end_all_devices();

/// Waits for the work of a created context, releases it, and ends its handle and those of its streams.
void destroy_context(const void* handle, const char* argument);

}  // namespace anynpu::abi
