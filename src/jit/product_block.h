#pragma once

#include <algorithm>
#include <cstdint>

#include "jit/jit.h"

namespace anynpu::jit {

/// The vector registers of an instruction set.
struct VectorRegisters {
  int lanes;  ///< elements that are computed at once, of any type; one vector, where registers are several
  int count, bytes;
};
constexpr VectorRegisters vector_registers(Isa isa) {
  return isa == Isa::kAvx2 ? VectorRegisters{8, 16, 32} : VectorRegisters{16, 32, 64};
}

/// The most rows of a product of matrices that are computed at once.
inline constexpr int64_t kProductRows = 6;

/// How many rows, and vectors of columns, of a product of matrices are computed at once: three quarters of
/// the registers hold sums, the others operands. `most_rows` and `most_cols` are what there is, at most.
struct ProductBlock {
  int rows, vectors;
};
constexpr ProductBlock product_block(const VectorRegisters& registers, tile::DType sums, int64_t most_rows,
                                     int64_t most_cols) {
  constexpr int64_t kMostVectors = 8;
  const int64_t lanes = registers.lanes, bytes = lanes * static_cast<int64_t>(tile::size_of(sums)),
                of_vector = std::max<int64_t>(1, bytes / registers.bytes);  // registers
  const int64_t rows = std::clamp<int64_t>(most_rows, 1, kProductRows),
                vectors = registers.count * 3 / 4 / of_vector / rows,
                there = std::max<int64_t>(1, (most_cols + lanes - 1) / lanes);
  return {static_cast<int>(rows),
          static_cast<int>(std::clamp<int64_t>(std::min(vectors, kMostVectors), 1, there))};
}

}  // namespace anynpu::jit
