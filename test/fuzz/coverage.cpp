#include "fuzz/coverage.h"

#include <numeric>
#include <optional>

#include "base/error.h"

namespace anynpu::tile {
namespace {

/// The type of elements that an operation works on, if it has one.
std::optional<DType> dtype_of(const Kernel& kernel, const Instruction& instruction) {
  switch (instruction.opcode) {
    case Opcode::kIota:
    case Opcode::kIndex:
    case Opcode::kLoad:
      return instruction.type.dtype;
    case Opcode::kSelect:
      return kernel.type(instruction.operands[1]).dtype;
    default:
      if (instruction.operands.empty()) return std::nullopt;
      return kernel.type(instruction.operands[0]).dtype;
  }
}

/// The types that dtype_of() can give.
DTypes accepted(Opcode opcode) {
  return opcode == Opcode::kBitcast ? kNumbers | DTypes(DType::kF16, DType::kBF16) : info(opcode).dtypes;
}

bool names_counter(const Index& index) {
  bool found = false;
  index.for_each_leaf([&](const Index& leaf) { found |= leaf.kind() == Index::Kind::kCounter; });
  return found;
}

}  // namespace

void Coverage::add(const Kernel& kernel) {
  ++programs_;
  if (!kernel.scalars.empty()) see(Way::kParameter);
  add(kernel, kernel.body);
}

void Coverage::add(const Kernel& kernel, const Body& body) {
  for (const Instruction& instruction : body.instructions) {
    if (const auto dtype = dtype_of(kernel, instruction))
      ++operations_[static_cast<size_t>(instruction.opcode)][static_cast<size_t>(*dtype)];
    if (instruction.opcode == Opcode::kCast) {
      ++casts_[static_cast<size_t>(kernel.type(instruction.operands[0]).dtype)]
              [static_cast<size_t>(instruction.type.dtype)];
      if (instruction.rounding == Rounding::kSaturate) see(Way::kSaturatingCast);
    }
    if (names_counter(instruction.index)) see(Way::kLoopWithCounter);
    if (instruction.buffer >= 0) add_memory(kernel, instruction);
    for (const Body& inner : instruction.body) add(kernel, inner);
  }
}

void Coverage::add_memory(const Kernel& kernel, const Instruction& instruction) {
  const bool loads = instruction.opcode == Opcode::kLoad;
  if (instruction.mask)
    see(loads                                  ? Way::kMaskedLoad
        : instruction.opcode == Opcode::kStore ? Way::kMaskedStore
                                               : Way::kMaskedAccumulate);
  if (instruction.otherwise) see(Way::kLoadWithOtherwise);
  for (size_t d = 0; d < instruction.places.size(); ++d) {
    const bool cols = d + 1 == instruction.places.size();
    if (const auto* index = std::get_if<Index>(&instruction.places[d]))
      index->for_each_leaf([&](const Index& leaf) {
        if (leaf.kind() == Index::Kind::kScalar) see(Way::kScalarPosition);
      });
    else if (loads)
      see(cols ? Way::kGatheredCols : Way::kGatheredRows);
    else
      see(cols ? Way::kScatteredCols : Way::kScatteredRows);
  }
  const Buffer& buffer = kernel.buffers[static_cast<size_t>(instruction.buffer)];
  if (!buffer.strides.empty() && buffer.strides.back() == 0) see(Way::kRepeatedLoad);
}

std::string Coverage::missing() const {
  std::string text;
  for (int i = 0; i < kOpcodes; ++i)
    for (int t = 0; t < kDTypes; ++t)
      if (const auto opcode = static_cast<Opcode>(i);
          accepted(opcode).contains(static_cast<DType>(t)) &&
          operations_[static_cast<size_t>(i)][static_cast<size_t>(t)] == 0)
        text += concat(info(opcode).name, " of ", name_of(static_cast<DType>(t)), "\n");
  for (int from = 0; from < kDTypes; ++from)
    for (int to = 0; to < kDTypes; ++to)
      if (from != to && casts_[static_cast<size_t>(from)][static_cast<size_t>(to)] == 0)
        text += concat("cast from ", name_of(static_cast<DType>(from)), " to ",
                       name_of(static_cast<DType>(to)), "\n");
  for (size_t i = 0; i < ways_.size(); ++i)
    if (ways_[i] == 0) text += concat(kWays[i], "\n");
  return text;
}

std::string Coverage::text() const {
  std::string text = concat(programs_, " programs\n");
  for (int i = 0; i < kOpcodes; ++i) {
    const auto& by_dtype = operations_[static_cast<size_t>(i)];
    text += concat(info(static_cast<Opcode>(i)).name, ' ',
                   std::accumulate(by_dtype.begin(), by_dtype.end(), uint64_t{0}), ':');
    for (int t = 0; t < kDTypes; ++t)
      if (const uint64_t count = by_dtype[static_cast<size_t>(t)]; count != 0)
        text += concat(' ', name_of(static_cast<DType>(t)), ' ', count);
    text += '\n';
  }
  for (size_t i = 0; i < ways_.size(); ++i) text += concat(kWays[i], ' ', ways_[i], '\n');
  return text;
}

}  // namespace anynpu::tile
