#pragma once

#include <cstdint>
#include <string_view>

namespace anynpu::jit {

/// The address of a function that compiled code may call, or null: the C library's that the interpreter
/// calls, too, and the one below.
void* runtime_function(std::string_view name);

/// Reduces `count` states of a reduction to the first of them; of each component an array, whose elements are
/// `stride` apart. Compiled code calls it where there is more than one block.
extern "C" void anynpu_jit_reduce(int opcode, int dtype, void* const* components, int64_t count,
                                  int64_t stride);

}  // namespace anynpu::jit
