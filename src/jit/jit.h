#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "jit/arguments.h"
#include "tile/interpret.h"
#include "tile/ir.h"

namespace anynpu::jit {

/// Names the sources of the tile IR and the JIT and the version of LLVM.
const char* build_id();

/// Instruction sets that code can be made for, each with those before it. The last one has dot products of
/// pairs, of bf16 and of i16 (AVX512_BF16 and AVX512_VNNI).
enum class Isa : uint8_t { kAvx2, kAvx512, kAvx512Dot };
inline constexpr std::string_view kIsaNames[] = {"avx2", "avx512", "avx512_dot"};
std::vector<Isa> isas_of_processor();  ///< those that it has, the widest last
/// What compiled() makes code for: the widest of the processor that ANYNPU_MAX_ISA allows.
Isa isa_of_machine();

/// How many columns of a product of matrices this machine computes at once, where it has that many rows or
/// more and at most `most` columns; sums of that type.
int64_t product_columns(tile::DType sums, int64_t rows, int64_t most = std::numeric_limits<int32_t>::max());

/// Machine code of a kernel. Immutable; runs in any number of threads at once.
class Compiled {
 public:
  Compiled(const Compiled&) = delete;
  virtual ~Compiled() = default;

  virtual const tile::Kernel& kernel() const = 0;

  /// Runs blocks [first, last), or all. Raises kInvalidArgument where arguments do not fit the kernel, and,
  /// after the others were done, where a position from data is out of the range of its buffer.
  void run(const tile::Arguments& arguments, int64_t first, int64_t last) const;
  void run(const tile::Arguments& arguments) const;

  // For callers that launch often: the same without checks and without an allocation.

  int64_t blocks(const PackedArguments& arguments) const;
  /// Adds what compiled code is told of its scratch memory to arguments that are else complete, and returns
  /// how many bytes of it each thread needs. Raises kInvalidArgument where a word is missing or too much, or
  /// where a tile would not fit memory.
  virtual size_t add_scratch(PackedArguments& arguments) const = 0;
  /// Runs blocks [first, last) with memory of that many bytes, aligned to 64, that no other thread uses
  /// meanwhile; any address where it is 0. A position out of range is left in `fault`, which the caller has
  /// initialised.
  virtual void call(const PackedArguments& arguments, std::byte* scratch, int64_t first, int64_t last,
                    tile::Fault& fault) const noexcept = 0;

 protected:
  Compiled() = default;
};

/// The code of a kernel for this machine, from the process's cache, else from the one on disk, else compiled,
/// which takes milliseconds and loads libanynpu_jit. Equal kernels have one code; threads that ask for it at
/// the same time wait for one of them to compile. Raises what compile() raises.
std::shared_ptr<const Compiled> compiled(const tile::Kernel& kernel);

/// Compiles a kernel past all caches. Raises kInternal where LLVM fails or libanynpu_jit cannot be loaded,
/// and what verify() raises.
std::shared_ptr<const Compiled> compile(tile::Kernel kernel, Isa isa = isa_of_machine());

/// What compile() makes, as text: the schedule, LLVM IR before and after its passes, and assembly, here or
/// for AArch64.
enum class Stage : uint8_t { kSchedule, kEmitted, kOptimized, kAssembly, kAssemblyAArch64 };
std::string code_text(const tile::Kernel& kernel, Stage stage, Isa isa = isa_of_machine());

}  // namespace anynpu::jit
