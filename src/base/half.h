#pragma once

#include <bit>
#include <cstdint>

namespace anynpu {

/// The value of an IEEE 754 half-precision number; exact.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 0x1f) {
    const uint32_t quiet = fraction != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13 | quiet);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

/// The nearest half-precision number, ties to even; beyond the range infinity, NaN a quiet NaN.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  uint32_t half = 0;
  if (magnitude > 0x7f800000) {
    half = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x477ff000) {  // 65520: halfway from the largest finite number to the next
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 rounds to multiples of 2^-24
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  } else {
    const uint32_t odd = magnitude >> 13 & 1;
    half = (magnitude + 0xfff + odd - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace anynpu
