#pragma once

#include <llvm/IR/Module.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "jit/code.h"
#include "jit/jit.h"
#include "jit/product_block.h"

namespace anynpu::jit {

/// How a processor is compiled for.
struct Target {
  std::string triple, cpu, features;  ///< as LLVM names them
  VectorRegisters registers;
  size_t least_masked;     ///< bytes of the smallest elements that it loads and stores by mask; 0: of none
  std::optional<Isa> isa;  ///< nothing: it is of another architecture

  bool masks(tile::DType dtype) const { return least_masked != 0 && size_of(dtype) >= least_masked; }
};

/// LLVM IR of a verified kernel, as a function of that name and of KernelFunction's type, and the scratch
/// memory that it takes.
struct Emitted {
  std::unique_ptr<llvm::Module> module;
  std::vector<Scratch> scratch;
  bool has_products = false;  ///< of matrices
};
Emitted emit(const tile::Kernel& kernel, const Target& target, llvm::LLVMContext& context,
             const std::string& name);

}  // namespace anynpu::jit
