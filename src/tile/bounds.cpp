#include "tile/bounds.h"

#include <algorithm>
#include <limits>

#include "tile/interpret.h"

namespace anynpu::tile {
namespace {

using Kind = Index::Kind;

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(),
                  kGreatest = std::numeric_limits<int64_t>::max();

/// Exact, or the end of the range where that does not fit.
int64_t clamp(__int128 value) { return static_cast<int64_t>(std::clamp<__int128>(value, kLeast, kGreatest)); }

Interval product(Interval a, Interval b) {
  const __int128 corners[] = {__int128{a.least} * b.least, __int128{a.least} * b.greatest,
                              __int128{a.greatest} * b.least, __int128{a.greatest} * b.greatest};
  return {clamp(*std::ranges::min_element(corners)), clamp(*std::ranges::max_element(corners))};
}

Interval combine(Kind kind, Interval a, Interval b) {
  const auto quotient = [](int64_t x, int64_t y) { return apply(Kind::kDiv, x, std::max<int64_t>(y, 1)); };
  switch (kind) {
    case Kind::kAdd:
      return {clamp(__int128{a.least} + b.least), clamp(__int128{a.greatest} + b.greatest)};
    case Kind::kSub:
      return {clamp(__int128{a.least} - b.greatest), clamp(__int128{a.greatest} - b.least)};
    case Kind::kMul:
      return product(a, b);
    case Kind::kDiv:
      return {std::min({quotient(a.least, b.least), quotient(a.least, b.greatest), int64_t{0}}),
              std::max({quotient(a.greatest, b.least), quotient(a.greatest, b.greatest), int64_t{0}})};
    case Kind::kMod:
      return {std::min<int64_t>(a.least, 0), std::max<int64_t>(b.greatest - 1, a.greatest)};
    case Kind::kMin:
      return {std::min(a.least, b.least), std::min(a.greatest, b.greatest)};
    default:
      return {std::max(a.least, b.least), std::max(a.greatest, b.greatest)};
  }
}

}  // namespace

Bounds::Bounds(const Kernel& kernel, std::span<const int64_t> sizes)
    : sizes_(sizes),
      block_{0, std::max<int64_t>(blocks_of(kernel, sizes) - 1, 0)},
      counters_(static_cast<size_t>(kernel.counters), {0, 0}) {
  add_loops(kernel.body);
}

void Bounds::add_loops(const Body& body) {
  for (const Instruction& instruction : body.instructions)
    if (instruction.opcode == Opcode::kLoop) {
      const int64_t first = of(instruction.first).least, last = of(instruction.last).greatest;
      counters_[static_cast<size_t>(instruction.counter)] = {first,
                                                             std::max(first, clamp(__int128{last} - 1))};
      for (const Body& inner : instruction.body) add_loops(inner);
    }
}

Interval Bounds::of(const Index& index) const {
  const auto at = static_cast<size_t>(index.value());
  switch (index.kind()) {
    case Kind::kConstant:
      return {index.value(), index.value()};
    case Kind::kSize:
      return {sizes_[at], sizes_[at]};
    case Kind::kBlock:
      return block_;
    case Kind::kCounter:
      return counters_[at];
    case Kind::kScalar:
      return {kLeast, kGreatest};
    default:
      return combine(index.kind(), of(index.left()), of(index.right()));
  }
}

}  // namespace anynpu::tile
