#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "guarded_memory.h"
#include "ops/launch.h"
#include "ops/operand.h"
#include "tile/interpret.h"
#include "tile/lane.h"

namespace anynpu::ops {

/// Elements of any type in memory, read and written as numbers. An access beyond their end faults, of each
/// second object one before their start; what is written on the other side is a failure.
class Elements {
 public:
  Elements(DType dtype, size_t count) : dtype_(dtype), bytes_(count * tile::size_of(dtype), next_edge()) {}
  Elements(const Elements&) = default;
  Elements(Elements&&) = default;
  Elements& operator=(const Elements&) = default;
  Elements& operator=(Elements&&) = default;
  ~Elements() { EXPECT_TRUE(bytes_.intact()) << "something was written beside the elements"; }
  void* data() { return bytes_.data(); }
  DType dtype() const { return dtype_; }
  size_t count() const { return bytes_.size() / tile::size_of(dtype_); }

  template <class N>  // double or int64_t
  N get(size_t i) const {
    return tile::visit(dtype_, [&]<class T>(std::type_identity<T>) {
      T value;
      std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
      return static_cast<N>(tile::widen(value));
    });
  }
  template <class N>
  void set(size_t i, N number) {
    tile::visit(dtype_, [&]<class T>(std::type_identity<T>) {
      const T value = tile::convert<T>(number);
      std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
    });
  }
  /// The same values; NaNs are equal whatever their bits.
  bool operator==(const Elements& other) const {
    for (size_t i = 0; i < count(); ++i) {
      const bool nan = !tile::kBits.contains(dtype_) && std::isnan(get<double>(i));
      const size_t size = tile::size_of(dtype_);
      if (nan ? !std::isnan(other.get<double>(i))
              : std::memcmp(bytes_.data() + i * size, other.bytes_.data() + i * size, size) != 0)
        return false;
    }
    return true;
  }

 private:
  static tile::GuardedMemory::Edge next_edge() {
    static std::atomic<unsigned> made = 0;
    return made++ % 2 == 0 ? tile::GuardedMemory::Edge::kEnd : tile::GuardedMemory::Edge::kStart;
  }

  DType dtype_;
  tile::GuardedMemory bytes_;
};

inline bool is_integer(DType dtype) { return tile::kBits.contains(dtype); }

/// The unit of the last place of `number` in that type.
inline double ulp(DType dtype, double number) {
  const int digits = dtype == DType::kF64 ? 53 : dtype == DType::kF32 ? 24 : dtype == DType::kF16 ? 11 : 8;
  const int least = dtype == DType::kF16 ? -14 : dtype == DType::kF64 ? -1022 : -126;
  const int exponent = std::max(number == 0 ? least : std::ilogb(number), least);
  return std::ldexp(1.0, exponent - digits + 1);
}

/// The kernel's grid for its arguments, and for those joined.
inline int64_t grid_of(const Launch& launch) {
  int64_t blocks = launch.code().blocks(launch.arguments());
  for (const Launch& other : launch.joined()) blocks += grid_of(other);
  return blocks;
}

/// Runs a launch by the interpreter.
inline void interpret(const Launch& launch) {
  EXPECT_EQ(launch.blocks(), grid_of(launch));
  for (const Launch& other : launch.joined()) interpret(other);
  const tile::Kernel& kernel = launch.code().kernel();
  const int64_t* word = launch.arguments().words();
  tile::Arguments arguments;
  for (size_t i = 0; i < kernel.sizes.size(); ++i) arguments.sizes.push_back(*word++);
  for (const tile::Buffer& buffer : kernel.buffers) {
    void* const data = reinterpret_cast<void*>(*word++);
    arguments.buffers.push_back({data, {word, word + buffer.strides.size()}});
    word += buffer.strides.size();
  }
  for (const tile::Value scalar : kernel.scalars)
    arguments.scalars.push_back(
        tile::visit(kernel.type(scalar).dtype, [&]<class T>(std::type_identity<T>) -> tile::Literal {
          T value;
          std::memcpy(&value, word++, sizeof(T));
          if constexpr (std::is_integral_v<T>) return static_cast<int64_t>(value);
          return static_cast<double>(tile::widen(value));
        }));
  tile::interpret(kernel, arguments);
}

/// A number between, or now and then one of those that formulas treat apart.
template <class Random>
double some_number(Random& random, double least, double most) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kSpecial[] = {0.0, -0.0, kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
  if (random() % 20 == 0) return kSpecial[random() % 5];
  return least + (most - least) * static_cast<double>(random() % (1 << 20)) / (1 << 20);
}

}  // namespace anynpu::ops
