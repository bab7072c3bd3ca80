#include "jit/codegen/emit.h"

#include <utility>

#include "jit/codegen/kernel_emitter.h"

namespace anynpu::jit {

Emitted emit(const Kernel& kernel, const Target& target, llvm::LLVMContext& context,
             const std::string& name) {
  auto module = std::make_unique<llvm::Module>(kernel.name, context);
  auto scratch = KernelEmitter(kernel, target, *module, name).run();
  return {std::move(module), std::move(scratch)};
}

}  // namespace anynpu::jit
