#pragma once

#include "jit/code.h"

namespace anynpu::jit {

/// The compiler of libanynpu_jit, which the first call loads from beside libanynpu. Raises kInternal, with
/// the file's name, where it is missing, cannot be loaded, or was built with other sources.
Compiler& compiler();

}  // namespace anynpu::jit
