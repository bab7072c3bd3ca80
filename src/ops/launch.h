#pragma once

#include <cstdint>
#include <memory>

#include "jit/jit.h"
#include "runtime/stream.h"

namespace anynpu::ops {

/// A kernel with its arguments.
struct Launch {
  std::shared_ptr<const jit::Compiled> code;
  tile::Arguments arguments;
  int64_t blocks = 0;
  double bytes = 0;  ///< that it reads and writes, or as much as its work is worth

  void run(int threads) const;
};

/// Enqueues it; parallel work has so many threads at most, 0: no limit.
void enqueue(Stream& stream, Launch launch, int threads);

}  // namespace anynpu::ops
