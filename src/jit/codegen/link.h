#pragma once

#include <string_view>

#include "jit/code.h"

namespace anynpu::jit {

/// Puts the sections of an x86-64 object file behind a table of the functions that it calls, and resolves
/// what refers from one to another. `entry` names the kernel's function. Raises kInternal where the object
/// takes more than that: absolute addresses, calls that do not go through the table, memory that is written.
Code link(std::string_view object, std::string_view entry);

}  // namespace anynpu::jit
