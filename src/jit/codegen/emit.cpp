#include "jit/codegen/emit.h"

#include <algorithm>
#include <utility>

#include "jit/codegen/kernel_emitter.h"

namespace anynpu::jit {
namespace {

bool has_products(const Body& body) {
  return std::ranges::any_of(body.instructions, [](const tile::Instruction& instruction) {
    return tile::is_product(instruction.opcode) || std::ranges::any_of(instruction.body, has_products);
  });
}

}  // namespace

Emitted emit(const Kernel& kernel, const Target& target, llvm::LLVMContext& context,
             const std::string& name) {
  auto module = std::make_unique<llvm::Module>(kernel.name, context);
  auto scratch = KernelEmitter(kernel, target, *module, name).run();
  return {std::move(module), std::move(scratch), has_products(kernel.body)};
}

}  // namespace anynpu::jit
