#include "base/parallel.h"

#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace anynpu {
namespace {

size_t pool_size() {
#ifdef _OPENMP
  return static_cast<size_t>(omp_get_max_threads());
#else
  return 1;  // the thread sanitizer does not understand libgomp's barriers
#endif
}

}  // namespace

void parallel_ranges(size_t size, size_t grain, const std::function<void(size_t, size_t)>& function) {
  const size_t parts = std::max<size_t>(1, std::min(pool_size(), size / std::max<size_t>(grain, 1)));
  if (parts == 1) return function(0, size);
  const size_t step = (size + parts - 1) / parts;
#ifdef _OPENMP
#pragma omp parallel for num_threads(static_cast<int>(parts)) schedule(static)
#endif
  for (size_t part = 0; part < parts; ++part)
    function(std::min(size, part * step), std::min(size, (part + 1) * step));
}

ThreadLimit::ThreadLimit([[maybe_unused]] int most) {
#ifdef _OPENMP
  if (most == 0 || most >= omp_get_max_threads()) return;
  before_ = omp_get_max_threads();
  omp_set_num_threads(most);
#endif
}

ThreadLimit::~ThreadLimit() {
#ifdef _OPENMP
  if (before_ != 0) omp_set_num_threads(before_);
#endif
}

}  // namespace anynpu
