#pragma once

#include <cstdint>
#include <optional>

#include "ops/cube/patches.h"
#include "ops/kernel_table.h"

namespace anynpu::ops {

/// What a kernel of a depthwise convolution is made for of a window along a dimension. Its taps have
/// distances of 0, step, 2 step, ... from its first element, in this order or from the last one on.
struct WindowAxis {
  uint8_t taps, stride, step;
  bool goes_back;

  explicit WindowAxis(const Window& window);
  int64_t distance(int64_t tap) const { return (goes_back ? taps - 1 - tap : tap) * step; }
  /// From the first element under the window to the last one.
  int64_t reach() const { return taps == 0 ? 0 : (taps - 1) * step; }
  /// How many more elements than positions, in steps of the stride, are under the window.
  int64_t margin() const { return reach() / stride; }
  void add_to(KernelTable::Key& key) const;
};

/// A stride that a kernel is made for; nothing for others.
std::optional<int64_t> known(int64_t stride);

/// `number`, where it is in [least, most]; else the nearer end.
tile::Index within(const tile::Index& least, const tile::Index& number, const tile::Index& most);

/// Leaves out the elements of an image before the first one under a tap. Returns how many zeros are before
/// the image.
int64_t crop(View& image, size_t dim, const Window& window);

}  // namespace anynpu::ops
