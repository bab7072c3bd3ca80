#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "jit/schedule.h"
#include "tile/interpret.h"
#include "tile/reduce.h"

namespace anynpu::jit {

/// Memory that a kernel needs while it works on a block: `rows` rows of `cols` elements, each row padded to a
/// multiple of kPadding elements.
struct Scratch {
  Index rows, cols;
  tile::DType dtype;
};
constexpr int64_t kPadding = tile::kReduceLanes;

/// What compiled code is called as. `arguments` are sizes; of each buffer its address and its strides;
/// scalars, 8 bytes each; and the addresses of the scratch regions. Runs blocks [first, last).
using KernelFunction = void (*)(const int64_t* arguments, int64_t first, int64_t last, tile::Fault* fault);

/// How a processor is compiled for.
struct Target {
  std::string triple, cpu, features;  ///< as LLVM names them
  int lanes;                          ///< elements that are computed at once
  bool masks;                         ///< has loads and stores of a part of a vector, for all types
};

}  // namespace anynpu::jit
