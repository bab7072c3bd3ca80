#include "ops/cube/window_axis.h"

#include <algorithm>
#include <cstdlib>

namespace anynpu::ops {

WindowAxis::WindowAxis(const Window& window)
    : taps(static_cast<uint8_t>(window.taps)),
      stride(static_cast<uint8_t>(window.stride)),
      step(static_cast<uint8_t>(window.taps > 1 ? std::abs(window.step) : 1)),
      goes_back(window.taps > 1 && window.step < 0) {}

void WindowAxis::add_to(KernelTable::Key& key) const {
  for (const uint8_t number : {taps, stride, step, static_cast<uint8_t>(goes_back)}) key.add(number);
}

std::optional<int64_t> known(int64_t stride) {
  return stride >= 0 && stride <= 2 ? std::optional(stride) : std::nullopt;
}

tile::Index within(const tile::Index& least, const tile::Index& number, const tile::Index& most) {
  return max(least, min(number, most));
}

int64_t crop(View& image, size_t dim, const Window& window) {
  const int64_t first = window.last() < window.first() ? 0 : window.first();
  if (first <= 0) return -first;
  const int64_t gone = std::min(first, image.sizes[dim]);
  image.data =
      static_cast<char*>(image.data) + gone * image.strides[dim] * static_cast<int64_t>(size_of(image.dtype));
  image.sizes[dim] -= gone;
  return 0;
}

}  // namespace anynpu::ops
