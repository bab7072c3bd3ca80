#pragma once

// The order in which reductions combine elements. It depends on nothing but their number, so that layout,
// vector width, threads and what else is computed do not change a result.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tile/lane.h"

namespace anynpu::tile {

constexpr int kReduceLanes = 32;
constexpr int64_t kReduceBlock = 4096;

/// Elements are taken in blocks of kReduceBlock. Element i of a block goes to lane i % kReduceLanes, which
/// takes its elements in order, starting at the identity; then lane l takes lane l + 16, l + 8, l + 4, l + 2,
/// l + 1. The results of more than one block are reduced in the same way. A reduction has State, identity(),
/// take(State, element) and merge(State, State).
template <class Reduction, class Element>
typename Reduction::State reduce(int64_t count, const Element& element) {
  using State = typename Reduction::State;
  const auto block = [](int64_t begin, int64_t end, const auto& take) {
    std::array<State, kReduceLanes> lanes;
    lanes.fill(Reduction::identity());
    for (int64_t i = begin; i < end; ++i) {
      State& lane = lanes[static_cast<size_t>((i - begin) % kReduceLanes)];
      lane = take(lane, i);
    }
    for (size_t half = kReduceLanes / 2; half != 0; half /= 2)
      for (size_t l = 0; l < half; ++l) lanes[l] = Reduction::merge(lanes[l], lanes[l + half]);
    return lanes[0];
  };
  const auto blocks = [&](int64_t count, const auto& take) {
    std::vector<State> results;
    for (int64_t begin = 0; begin < count; begin += kReduceBlock)
      results.push_back(block(begin, std::min(count, begin + kReduceBlock), take));
    return results;
  };
  auto level = blocks(count, [&](State state, int64_t i) { return Reduction::take(state, element(i)); });
  while (level.size() > 1) {
    const auto below = std::move(level);
    level = blocks(static_cast<int64_t>(below.size()), [&](State state, int64_t i) {
      return Reduction::merge(state, below[static_cast<size_t>(i)]);
    });
  }
  return level.empty() ? Reduction::identity() : level[0];
}

/// One that takes elements as states.
template <class T>
struct Plain {
  using State = T;
};

template <class T>
struct SumReduction : Plain<T> {
  static T identity() { return 0; }
  static T merge(T a, T b) { return lane::add(a, b); }
  static T take(T a, T b) { return merge(a, b); }
};
template <class T>
struct ProdReduction : Plain<T> {
  static T identity() { return 1; }
  static T merge(T a, T b) { return lane::mul(a, b); }
  static T take(T a, T b) { return merge(a, b); }
};
template <class T>
struct MaxReduction : Plain<T> {
  static T identity() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  static T merge(T a, T b) { return lane::max(a, b); }
  static T take(T a, T b) { return merge(a, b); }
};
template <class T>
struct MinReduction : Plain<T> {
  static T identity() {
    using Limits = std::numeric_limits<T>;
    return Limits::has_infinity ? Limits::infinity() : Limits::max();
  }
  static T merge(T a, T b) { return lane::min(a, b); }
  static T take(T a, T b) { return merge(a, b); }
};

template <class T>
struct Position {
  T value;
  int64_t position;
};

/// The first position of the extreme element; the first NaN where there is one. -1 of no elements.
template <class T, bool kGreatest>
struct ArgReduction {
  using State = Position<T>;
  static State identity() { return {T{}, -1}; }
  static State merge(State a, State b) {
    if (a.position < 0 || b.position < 0) return a.position < 0 ? b : a;
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    const bool equal = a.value == b.value || (a_nan && b_nan);
    if (equal) return a.position < b.position ? a : b;
    if (a_nan || b_nan) return a_nan ? a : b;
    return (kGreatest ? a.value > b.value : a.value < b.value) ? a : b;
  }
  static State take(State a, State b) { return merge(a, b); }
};

/// Mean and the sum of squared distances from it, in one pass.
/// Welford 1962, Technometrics 4(3); merging: Chan, Golub, LeVeque 1983, The American Statistician 37(3).
template <class T>
struct MomentsReduction {
  struct State {
    T count, mean, squares;
  };
  static State identity() { return {0, 0, 0}; }
  static State take(State a, T x) {
    const T count = a.count + 1, distance = x - a.mean;
    const T mean = lane::fma(distance, 1 / count, a.mean);
    return {count, mean, lane::fma(distance, x - mean, a.squares)};
  }
  static State merge(State a, State b) {
    if (b.count == 0) return a;
    if (a.count == 0) return b;
    const T count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;
    return {count, lane::fma(distance, share, a.mean),
            lane::fma(distance * distance, a.count * share, a.squares + b.squares)};
  }
};

}  // namespace anynpu::tile
