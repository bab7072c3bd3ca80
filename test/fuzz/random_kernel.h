#pragma once

#include <cstdint>

#include "workload.h"

namespace anynpu::tile {

/// A kernel made of random operations, and random memory to run it on: the same for the same seed.
Workload random_kernel(uint64_t seed);

}  // namespace anynpu::tile
