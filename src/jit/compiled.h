#pragma once

#include <memory>

#include "jit/code.h"

namespace anynpu::jit {

/// The code of a kernel, ready to run. Raises kOutOfMemory where there is no memory for it, and kInternal
/// where it calls a function that it may not or memory cannot be made executable.
std::shared_ptr<const Compiled> loaded(tile::Kernel kernel, const Code& code);

}  // namespace anynpu::jit
