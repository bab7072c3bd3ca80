#pragma once

#include <llvm/IR/Module.h>

#include <memory>
#include <string>
#include <vector>

#include "jit/code.h"

namespace anynpu::jit {

/// LLVM IR of a verified kernel, as a function of that name and of KernelFunction's type, and the scratch
/// memory that it takes.
struct Emitted {
  std::unique_ptr<llvm::Module> module;
  std::vector<Scratch> scratch;
};
Emitted emit(const tile::Kernel& kernel, const Target& target, llvm::LLVMContext& context,
             const std::string& name);

/// Reduces `count` states of a reduction to the first of them; of each component an array, whose elements are
/// `stride` apart. Compiled code calls it where there is more than one block.
extern "C" void anynpu_jit_reduce(int opcode, int dtype, void* const* components, int64_t count,
                                  int64_t stride);

}  // namespace anynpu::jit
