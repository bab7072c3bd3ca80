#include "ops/code.h"

namespace anynpu::ops {
namespace {

/// Marks the buffers, not the local ones, that instructions write.
void mark_written(const tile::Kernel& kernel, const tile::Body& body, std::vector<bool>& written) {
  for (const tile::Instruction& instruction : body.instructions) {
    const int buffer = instruction.buffer;
    const bool writes =
        instruction.opcode == tile::Opcode::kStore || instruction.opcode == tile::Opcode::kAccumulate;
    if (writes && !kernel.is_local(buffer)) written[static_cast<size_t>(buffer)] = true;
    for (const tile::Body& inner : instruction.body) mark_written(kernel, inner, written);
  }
}

}  // namespace

Code::Code(std::shared_ptr<const jit::Compiled> compiled) : compiled_(std::move(compiled)) {
  const tile::Kernel& kernel = compiled_->kernel();
  std::vector<bool> written(kernel.buffers.size());
  mark_written(kernel, kernel.body, written);
  size_t word = kernel.sizes.size();
  for (size_t i = 0; i < kernel.buffers.size(); ++i) {
    if (written[i]) written_.push_back(word);
    word += 1 + kernel.buffers[i].strides.size();
  }
}

}  // namespace anynpu::ops
