#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "ops/lines.h"

namespace anynpu::ops {

/// Dimensions of a tensor, by their number.
using Dims = std::bitset<64>;

/// A reduction of a tensor over some of its dimensions, in the order of its indices, the last one fastest.
/// Results have the sizes of the other dimensions, none of them 0.
struct Reduction {
  const LineOp& op;  ///< one that reduces
  DType common = DType::kF32;
  std::span<const View> results;
  const View& operand;
  Dims over;
};

/// What computes it, in order. Where the dimensions have no one stride, the operand is copied first. A long
/// line is reduced in parts, so that there is work for all threads, to the same bits.
std::vector<Launch> prepare(const Reduction& reduction, const TakeMemory& take);

/// The sizes of a reduction's results: with `keep`, the reduced dimensions have size 1.
std::vector<int64_t> reduced_sizes(std::span<const int64_t> sizes, Dims over, bool keep);

}  // namespace anynpu::ops
