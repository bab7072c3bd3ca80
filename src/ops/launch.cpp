#include "ops/launch.h"

#include <utility>

#include "base/parallel.h"

namespace anynpu::ops {

void Launch::run(int threads) const {
  if (threads == 1) return code->run(arguments, 0, blocks);
  const ThreadLimit limit(threads);
  parallel_ranges(static_cast<size_t>(blocks), 1, [&](size_t first, size_t last) {
    code->run(arguments, static_cast<int64_t>(first), static_cast<int64_t>(last));
  });
}

void enqueue(Stream& stream, Launch launch, int threads) {
  const Lane lane = lane_for(launch.bytes);
  stream.launch(lane, [launch = std::move(launch), threads = lane == Lane::kShort ? 1 : threads] {
    launch.run(threads);
  });
}

}  // namespace anynpu::ops
