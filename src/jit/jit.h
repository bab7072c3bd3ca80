#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tile/interpret.h"
#include "tile/ir.h"

namespace anynpu::jit {

/// Machine code of a kernel. Immutable; runs in any number of threads at once.
class Compiled {
 public:
  virtual ~Compiled() = default;
  /// Runs blocks [first, last) with arguments that check_arguments() accepts. Raises kInvalidArgument where a
  /// position from data is out of the range of its buffer, after the others were done.
  virtual void run(const tile::Arguments& arguments, int64_t first, int64_t last) const = 0;
  void run(const tile::Arguments& arguments) const;
  virtual const tile::Kernel& kernel() const = 0;
};

/// Instruction sets that code can be made for.
enum class Isa : uint8_t { kAvx2, kAvx512 };
Isa isa_of_machine();  ///< the widest that this processor has

/// Compiles a kernel, which takes milliseconds. Raises kInternal where LLVM fails, and what verify() raises.
std::shared_ptr<const Compiled> compile(tile::Kernel kernel, Isa isa = isa_of_machine());

/// What compile() makes, as text: LLVM IR before and after its passes, and assembly, here or for AArch64.
enum class Stage : uint8_t { kSchedule, kEmitted, kOptimized, kAssembly, kAssemblyAArch64 };
std::string code_text(const tile::Kernel& kernel, Stage stage, Isa isa = isa_of_machine());

}  // namespace anynpu::jit
