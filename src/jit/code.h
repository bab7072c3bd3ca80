#pragma once

// What libanynpu and libanynpu_jit agree on.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jit/jit.h"
#include "tile/interpret.h"
#include "tile/reduce.h"

namespace anynpu::jit {

/// Memory that a kernel needs while it works on a block: `rows` rows of `cols` elements, each row padded to a
/// multiple of kPadding elements.
struct Scratch {
  tile::Index rows, cols;
  tile::DType dtype;
};
constexpr int64_t kPadding = tile::kReduceLanes;
constexpr size_t kScratchAlignment = 64;  ///< of the memory and of each region in it

/// What compiled code is called as: with what PackedArguments holds, memory for its scratch regions, the
/// blocks [first, last) to run, and where to report a fault. C's calling convention.
using KernelFunction = void (*)(const int64_t* arguments, std::byte* scratch, int64_t first, int64_t last,
                                tile::Fault* fault);

/// Machine code of a kernel, which runs at any address that is a multiple of kCodeAlignment. At its start are
/// the addresses of the functions that it calls, 8 bytes each, to be filled in.
struct Code {
  std::string bytes;
  uint64_t entry = 0;                  ///< where the KernelFunction begins
  std::vector<std::string> functions;  ///< names, of those that runtime.h has
  std::vector<Scratch> scratch;
};
constexpr size_t kCodeAlignment = 64;

/// As bytes, and back. Raises kInternal where they are not such bytes.
std::string to_bytes(const Code& code);
Code code_of(std::string_view bytes);

/// The compiler in libanynpu_jit. Thread-safe.
class Compiler {
 public:
  /// Of a verified kernel. Raises kInternal where LLVM fails.
  virtual Code compile(const tile::Kernel& kernel, Isa isa) = 0;
  virtual std::string text(const tile::Kernel& kernel, Stage stage, Isa isa) = 0;

 protected:
  ~Compiler() = default;  // lives for ever
};

/// libanynpu_jit's one entry: its compiler, if its kBuildId is `wanted`, else null; and what that is.
using CompilerEntry = Compiler* (*)(const char* wanted, const char** built);
constexpr const char* kCompilerEntry = "anynpu_jit_compiler";

}  // namespace anynpu::jit
