#pragma once

#include "runtime/context.h"

namespace anynpu::abi {

/// Takes one use of the device's default context back, or all (see Context::unuse_default), and ends the
/// handles of what goes with it.
void unuse_device(int device, bool all);

/// The same for every device in use.
void unuse_all_devices();

/// Waits for the work of a context, releases it, and ends the handles of its streams.
void destroy_context(Context& context);

}  // namespace anynpu::abi
