#pragma once

#include <cstdint>

#include "workload.h"

namespace anynpu::tile {

/// The kernel of random_kernel(), without memory.
Kernel random_program(uint64_t seed);

/// A kernel made of random operations, and random memory to run it on: the same for the same seed.
Workload random_kernel(uint64_t seed);

}  // namespace anynpu::tile
