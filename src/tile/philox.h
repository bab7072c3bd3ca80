#pragma once

#include <array>
#include <cstdint>

namespace anynpu::tile {

/// The words of a product of 32-bit numbers.
template <class W>
struct WideProduct {
  W high, low;
};
inline WideProduct<uint32_t> wide_product(uint32_t a, uint32_t b) {
  const uint64_t product = uint64_t{a} * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
}

/// Four words of 32 random bits, W: uint32_t, or many side by side, with ^, +, and wide_product(uint32_t, W).
/// Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3": Philox4x32-10. Low words come first.
template <class W>
std::array<W, 4> philox4x32(std::array<W, 2> key, std::array<W, 4> x) {
  constexpr uint32_t kMultipliers[] = {0xd2511f53, 0xcd9e8d57}, kWeyl[] = {0x9e3779b9, 0xbb67ae85};
  for (int round = 0; round < 10; ++round) {
    const WideProduct<W> a = wide_product(kMultipliers[0], x[0]), b = wide_product(kMultipliers[1], x[2]);
    x = {b.high ^ x[1] ^ key[0], b.low, a.high ^ x[3] ^ key[1], a.low};
    key = {key[0] + W(kWeyl[0]), key[1] + W(kWeyl[1])};
  }
  return x;
}

/// With the key `seed` and the counter (offset, subsequence), as PyTorch's generators have it.
inline std::array<uint32_t, 4> philox4x32(uint64_t seed, uint64_t offset, uint64_t subsequence) {
  const auto words = [](uint64_t wide) {
    return std::array{static_cast<uint32_t>(wide), static_cast<uint32_t>(wide >> 32)};
  };
  const auto low = words(offset), high = words(subsequence);
  return philox4x32<uint32_t>(words(seed), {low[0], low[1], high[0], high[1]});
}

}  // namespace anynpu::tile
