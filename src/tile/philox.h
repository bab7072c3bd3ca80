#pragma once

#include <array>
#include <cstdint>

namespace anynpu::tile {

/// Four words of 32 random bits. Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3":
/// Philox4x32-10 with the key `seed` and the counter (offset, subsequence), low words first, as PyTorch's
/// generators have it.
inline std::array<uint32_t, 4> philox4x32(uint64_t seed, uint64_t offset, uint64_t subsequence) {
  constexpr uint32_t kMultipliers[] = {0xd2511f53, 0xcd9e8d57}, kWeyl[] = {0x9e3779b9, 0xbb67ae85};
  uint32_t key[] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  std::array<uint32_t, 4> x = {static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32),
                               static_cast<uint32_t>(subsequence), static_cast<uint32_t>(subsequence >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{kMultipliers[0]} * x[0], b = uint64_t{kMultipliers[1]} * x[2];
    x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ x[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += kWeyl[0];
    key[1] += kWeyl[1];
  }
  return x;
}

}  // namespace anynpu::tile
