#pragma once

#include <cstddef>
#include <functional>

namespace anynpu {

/// Calls `function(begin, end)` on disjoint ranges that cover [0, size), each of at least `grain` (the last
/// may be smaller), on the threads of the OpenMP pool that belongs to the calling thread. Only the compute
/// thread may call it with a size above the grain: it shares its pool with PyTorch's kernels, whose OpenMP
/// library is the one loaded first in the process. `function` must not throw.
void parallel_ranges(size_t size, size_t grain, const std::function<void(size_t, size_t)>& function);

/// For its life, parallel regions that the calling thread opens use at most `most` threads; 0: no limit.
class ThreadLimit {
 public:
  explicit ThreadLimit(int most);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;

 private:
  [[maybe_unused]] int before_ = 0;  // where there are such regions
};

}  // namespace anynpu
