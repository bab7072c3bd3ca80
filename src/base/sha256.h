#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace anynpu {

using Digest = std::array<uint8_t, 32>;

/// SHA-256, as FIPS 180-4 defines it.
Digest sha256(std::string_view bytes);

std::string hex(const Digest& digest);  ///< 64 lower-case digits

}  // namespace anynpu
