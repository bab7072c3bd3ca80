#include "fuzz/coverage.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

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
    case Opcode::kMatmulPairs:
      return kernel.type(instruction.operands[2]).dtype;
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

/// The instruction of a body that gives a value; none where it is from elsewhere.
const Instruction* definition(const Body& body, Value value) {
  const auto found = std::ranges::find_if(body.instructions, [&](const Instruction& instruction) {
    return std::ranges::find(instruction.results, value) != instruction.results.end();
  });
  return found == body.instructions.end() ? nullptr : &*found;
}

/// The instructions of a body that have a value among their operands.
std::vector<const Instruction*> users_of(const Body& body, Value value) {
  std::vector<const Instruction*> users;
  for (const Instruction& instruction : body.instructions)
    if (std::ranges::find(instruction.operands, value) != instruction.operands.end())
      users.push_back(&instruction);
  return users;
}

/// Whether elementwise operations, one after another, take a value to memory.
bool is_stored(const Body& body, Value value) {
  const auto users = users_of(body, value);
  if (users.size() != 1) return false;
  const Instruction& user = *users[0];
  if (user.opcode == Opcode::kStore) return true;
  using Shape = OpcodeInfo::Shape;
  const Shape shape = info(user.opcode).shape;
  const bool elementwise =
      shape == Shape::kElementwise || shape == Shape::kCompare || user.opcode == Opcode::kCast;
  return elementwise && is_stored(body, user.results[0]);
}

constexpr Opcode kAccesses[] = {Opcode::kLoad, Opcode::kStore, Opcode::kAccumulate};
size_t local_access(Opcode opcode) {
  return static_cast<size_t>(std::ranges::find(kAccesses, opcode) - std::begin(kAccesses));
}

bool is_zero(const Place& place) {
  const auto* index = std::get_if<Index>(&place);
  return index != nullptr && index->is(0);
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
  add_uses(kernel, body);
}

/// What follows from how one instruction of a body uses another's result.
void Coverage::add_uses(const Kernel& kernel, const Body& body) {
  for (const Instruction& instruction : body.instructions) {
    if (is_product(instruction.opcode)) add_product(kernel, body, instruction);
    if (instruction.opcode != Opcode::kStore || !kernel.is_local(instruction.buffer)) continue;
    const Instruction* stored = definition(body, instruction.operands[0]);
    if (stored != nullptr && stored->opcode == Opcode::kTranspose) see(Way::kTurnedToLocal);
  }
}

void Coverage::add_product(const Kernel& kernel, const Body& body, const Instruction& product) {
  for (const Value operand : {product.operands[0], product.operands[1]}) {
    const Instruction* source = definition(body, operand);
    if (source != nullptr && source->opcode == Opcode::kTranspose) {
      see(Way::kProductOfTurned);
      source = definition(body, source->operands[0]);
    }
    if (source != nullptr && source->opcode == Opcode::kCast) {
      see(Way::kProductOfConverted);
      source = definition(body, source->operands[0]);
    }
    if (source == nullptr) continue;
    if (source->opcode != Opcode::kLoad) {
      see(Way::kProductOfComputed);
      continue;
    }
    see(kernel.is_local(source->buffer) ? Way::kProductOfLocal : Way::kProductOfMemory);
    if (std::any_of(source, &product, [&](const Instruction& between) {
          return between.opcode == Opcode::kStore && between.buffer == source->buffer;
        }))
      see(Way::kProductOfOverwritten);
  }
  const Value result = product.results[0];
  const Type& shape = kernel.type(result);
  if (shape.rows.upper_bound() && shape.cols.upper_bound()) see(Way::kProductInRegisters);
  if (std::ranges::find(body.arguments, product.operands[2]) != body.arguments.end())
    see(Way::kProductInLoop);
  const auto users = users_of(body, result);
  if (users.size() > 1) see(Way::kSharedProduct);
  if (users.size() != 1) return;
  if (users[0]->opcode == Opcode::kStore)
    see(Way::kStoredProduct);
  else if (users[0]->opcode == Opcode::kAccumulate)
    see(Way::kAddedProduct);
  else if (!users[0]->results.empty() && is_stored(body, users[0]->results[0]))
    see(Way::kFinishedProduct);
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
  const Buffer& buffer = kernel.buffer(instruction.buffer);
  if (!buffer.strides.empty() && buffer.strides.back() == 0) see(Way::kRepeatedLoad);
  if (!kernel.is_local(instruction.buffer)) return;
  ++locals_[local_access(instruction.opcode)][static_cast<size_t>(buffer.dtype)];
  if (!std::ranges::all_of(instruction.places, is_zero)) see(loads ? Way::kLoadOfPart : Way::kStoreOfPart);
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
  for (size_t i = 0; i < locals_.size(); ++i)
    for (int t = 0; t < kDTypes; ++t)
      if (const auto dtype = static_cast<DType>(t);
          accepted(kAccesses[i]).contains(dtype) && locals_[i][static_cast<size_t>(t)] == 0)
        text += concat("local ", info(kAccesses[i]).name, " of ", name_of(dtype), "\n");
  for (size_t i = 0; i < ways_.size(); ++i)
    if (ways_[i] == 0) text += concat(kWays[i], "\n");
  return text;
}

std::string Coverage::text() const {
  std::string text = concat(programs_, " programs\n");
  const auto line = [&](std::string_view name, const std::array<uint64_t, kDTypes>& by_dtype) {
    text += concat(name, ' ', std::accumulate(by_dtype.begin(), by_dtype.end(), uint64_t{0}), ':');
    for (int t = 0; t < kDTypes; ++t)
      if (const uint64_t count = by_dtype[static_cast<size_t>(t)]; count != 0)
        text += concat(' ', name_of(static_cast<DType>(t)), ' ', count);
    text += '\n';
  };
  for (int i = 0; i < kOpcodes; ++i)
    line(info(static_cast<Opcode>(i)).name, operations_[static_cast<size_t>(i)]);
  for (size_t i = 0; i < locals_.size(); ++i) line(concat("local ", info(kAccesses[i]).name), locals_[i]);
  for (size_t i = 0; i < ways_.size(); ++i) text += concat(kWays[i], ' ', ways_[i], '\n');
  return text;
}

}  // namespace anynpu::tile
