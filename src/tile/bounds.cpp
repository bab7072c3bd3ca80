#include "tile/bounds.h"

#include <algorithm>
#include <limits>

namespace anynpu::tile {
namespace {

using Kind = Index::Kind;

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(),
                  kGreatest = std::numeric_limits<int64_t>::max();

/// Exact, or the end of the range where that does not fit.
int64_t clamp(__int128 value) { return static_cast<int64_t>(std::clamp<__int128>(value, kLeast, kGreatest)); }

Interval product(Interval a, Interval b) {
  if (a.least >= 0 && b.least >= 0)
    return {clamp(__int128{a.least} * b.least), clamp(__int128{a.greatest} * b.greatest)};
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

Bounds::Bounds(const Kernel& kernel) : counters_(static_cast<size_t>(kernel.counters), 0) {
  block_ = append({.kind = Kind::kBlock, .left = add(kernel.grid)});
  add_loops(kernel.body);
}

void Bounds::add_loops(const Body& body) {
  for (const Instruction& instruction : body.instructions)
    if (instruction.opcode == Opcode::kLoop) {
      const size_t first = add(instruction.first), last = add(instruction.last);
      counters_[static_cast<size_t>(instruction.counter)] =
          append({.kind = Kind::kCounter, .left = first, .right = last});
      for (const Body& inner : instruction.body) add_loops(inner);
    }
}

size_t Bounds::append(Step step) {
  steps_.push_back(step);
  return steps_.size() - 1;
}

size_t Bounds::add(const Index& index) {
  if (index.kind() == Kind::kBlock) return block_;
  if (index.kind() == Kind::kCounter) return counters_[static_cast<size_t>(index.value())];
  const auto found = std::ranges::find(known_, index, &std::pair<Index, size_t>::first);
  if (found != known_.end()) return found->second;
  const bool leaf =
      index.kind() == Kind::kConstant || index.kind() == Kind::kSize || index.kind() == Kind::kScalar;
  Step step = {.kind = index.kind()};
  if (leaf) {
    step.value = index.value();
  } else {
    step.left = add(index.left());
    step.right = add(index.right());
  }
  return known_.emplace_back(index, append(step)).second;
}

void Bounds::evaluate(std::span<const int64_t> sizes, std::span<Interval> intervals) const {
  const auto of = [&](const Step& step) -> Interval {
    switch (step.kind) {
      case Kind::kConstant:
        return {step.value, step.value};
      case Kind::kSize: {
        const int64_t size = sizes[static_cast<size_t>(step.value)];
        return {size, size};
      }
      case Kind::kScalar:
        return {kLeast, kGreatest};
      case Kind::kBlock:
        return {0, std::max<int64_t>(intervals[step.left].greatest - 1, 0)};
      case Kind::kCounter: {
        const int64_t first = intervals[step.left].least, last = intervals[step.right].greatest;
        return {first, std::max(first, clamp(__int128{last} - 1))};
      }
      default:
        return combine(step.kind, intervals[step.left], intervals[step.right]);
    }
  };
  for (size_t i = 0; i < steps_.size(); ++i) intervals[i] = of(steps_[i]);
}

}  // namespace anynpu::tile
