#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "guarded_memory.h"
#include "tile/interpret.h"
#include "tile/ir.h"

namespace anynpu::tile {

/// A kernel, and memory to run it on.
struct Workload {
  Kernel kernel;
  Arguments arguments;                ///< whose buffers point into `memory`
  std::vector<GuardedMemory> memory;  ///< by buffer: its elements
  std::vector<size_t> written;        ///< buffers that the kernel writes

  Workload() = default;
  Workload(Workload&&) = default;
  Workload(const Workload&) = delete;
  /// The arguments, with the memory of buffers that are written in `copies`.
  Arguments on_copies(std::vector<GuardedMemory>& copies) const;
};

/// How buffers lie in memory where the kernel does not say it.
enum class Layout : uint8_t {
  kDense,   ///< row by row
  kRandom,  ///< dimensions in any order, with gaps, and of what is only read repeated
};

/// Random elements and scalars, special values among them: the same for the same state of `random`. Raises
/// kInvalidArgument unless there are as many sizes as the kernel takes.
Workload make_workload(Kernel kernel, std::vector<int64_t> sizes, Layout layout, std::mt19937_64& random);

/// Where two runs differ, NaN being equal to NaN, or what the second one wrote beside its buffers; empty when
/// neither is the case.
std::string difference(const Workload& workload, const std::vector<GuardedMemory>& expected,
                       const std::vector<GuardedMemory>& actual);

}  // namespace anynpu::tile
