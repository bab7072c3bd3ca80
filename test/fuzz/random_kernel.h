#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "tile/interpret.h"
#include "tile/ir.h"

namespace anynpu::tile {

/// A kernel made of random operations, and memory to run it on.
struct RandomKernel {
  Kernel kernel;
  Arguments arguments;                         ///< whose buffers point into `memory`
  std::vector<std::vector<std::byte>> memory;  ///< by buffer
  std::vector<size_t> written;                 ///< buffers that the kernel writes

  RandomKernel() = default;
  RandomKernel(RandomKernel&&) = default;
  RandomKernel(const RandomKernel&) = delete;
  /// The arguments, with the memory of buffers that are written in `copies`.
  Arguments on_copies(std::vector<std::vector<std::byte>>& copies) const;
};

/// The same for the same seed.
RandomKernel random_kernel(uint64_t seed);

/// Where two runs differ, NaN being equal to NaN; empty when they do not.
std::string difference(const RandomKernel& random, const std::vector<std::vector<std::byte>>& expected,
                       const std::vector<std::vector<std::byte>>& actual);

}  // namespace anynpu::tile
