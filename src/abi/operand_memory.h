#pragma once

#include <optional>

#include "acl/acl_base.h"
#include "ops/iteration.h"

namespace anynpu::abi {

/// What an interface returns for an address that is null, and for one that does not serve.
struct MemoryCodes {
  aclError null, wrong;
};

/// Fails, naming the argument, unless the elements of `view` lie in one live allocation of device or pinned
/// memory that the device reaches. Without a device an address need not be known yet: null passes.
void check_memory(const char* name, const ops::View& view, std::optional<int> device, MemoryCodes codes);

}  // namespace anynpu::abi
