#include "ops/iteration.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace anynpu::ops {
namespace {

using Sizes = std::vector<int64_t>;

Sizes vector_of(std::span<const int64_t> span) { return {span.begin(), span.end()}; }

View view(Sizes sizes, Sizes strides, DType dtype = DType::kF32) {
  return {dtype, nullptr, std::move(sizes), std::move(strides)};
}

TEST(Iteration, ContiguousTensorsHaveOneDimension) {
  const std::vector<View> views = {contiguous(DType::kF32, nullptr, {2, 3, 4}),
                                   contiguous(DType::kF16, nullptr, {2, 3, 4})};
  const Iteration iteration(views);
  EXPECT_EQ(vector_of(iteration.sizes()), (Sizes{24}));
  EXPECT_EQ(vector_of(iteration.operands()[0].strides), (Sizes{4}));
  EXPECT_EQ(vector_of(iteration.operands()[1].strides), (Sizes{2}));
}

TEST(Iteration, TheResultsSmallestStrideIsInnermost) {
  const std::vector<View> views = {view({3, 4}, {1, 3}), view({3, 4}, {4, 1})};
  const Iteration iteration(views);
  EXPECT_EQ(vector_of(iteration.sizes()), (Sizes{3, 4}));
  EXPECT_EQ(vector_of(iteration.operands()[0].strides), (Sizes{4, 12}));
  EXPECT_EQ(vector_of(iteration.operands()[1].strides), (Sizes{16, 4}));
}

TEST(Iteration, BroadcastDimensionsStayApart) {
  const View result = contiguous(DType::kF32, nullptr, {2, 3, 4});
  const std::vector<View> views = {result, contiguous(DType::kF32, nullptr, {3, 1}).expanded(result.sizes)};
  const Iteration iteration(views);
  EXPECT_EQ(vector_of(iteration.sizes()), (Sizes{4, 3, 2}));
  EXPECT_EQ(vector_of(iteration.operands()[1].strides), (Sizes{0, 4, 0}));
}

TEST(Iteration, OneElementHasOneDimension) {
  const std::vector<View> views = {view({}, {}), view({}, {})};
  EXPECT_EQ(vector_of(Iteration(views).sizes()), (Sizes{1}));
  const std::vector<View> lines = {view({1, 5}, {5, 1})};
  const Iteration across(lines, 1);
  EXPECT_EQ(vector_of(across.sizes()), (Sizes{1}));
  EXPECT_EQ(vector_of(across.operands()[0].strides), (Sizes{0, 4}));
}

TEST(Iteration, LinesKeepTheirStrideLast) {
  const std::vector<View> views = {contiguous(DType::kF32, nullptr, {2, 3, 4, 5})};
  const Iteration across(views, 1);
  EXPECT_EQ(vector_of(across.sizes()), (Sizes{20, 2}));
  EXPECT_EQ(vector_of(across.operands()[0].strides), (Sizes{4, 240, 80}));
}

/// Of each index, the offsets of its elements in the tensors: as sizes and strides in bytes say.
std::multimap<int64_t, int64_t> offsets(const Sizes& sizes, const Sizes& a, const Sizes& b) {
  std::multimap<int64_t, int64_t> found;
  std::vector<int64_t> index(sizes.size(), 0);
  while (true) {
    int64_t at_a = 0, at_b = 0;
    for (size_t d = 0; d < sizes.size(); ++d) at_a += index[d] * a[d], at_b += index[d] * b[d];
    found.emplace(at_a, at_b);
    size_t d = 0;
    while (d < sizes.size() && ++index[d] == sizes[d]) index[d++] = 0;
    if (d == sizes.size()) return found;
  }
}

TEST(Iteration, KeepsWhichElementsGoTogether) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    Sizes sizes;
    for (size_t d = random() % 5; d > 0; --d) sizes.push_back(1 + static_cast<int64_t>(random() % 4));
    View result = contiguous(DType::kI16, nullptr, sizes), operand = contiguous(DType::kF64, nullptr, sizes);
    for (size_t d = 0; d + 1 < sizes.size(); ++d) {
      const size_t other = d + random() % (sizes.size() - d);
      for (Sizes* values : {&sizes, &result.sizes, &operand.sizes, &result.strides})
        std::swap((*values)[d], (*values)[other]);
      if (random() % 3 == 0) operand.strides[d] = 0;
    }
    Sizes a = result.strides, b = operand.strides;
    for (int64_t& stride : a) stride *= 2;
    for (int64_t& stride : b) stride *= 8;
    const std::vector<View> views = {result, operand};
    const Iteration iteration(views);
    EXPECT_EQ(offsets(vector_of(iteration.sizes()), vector_of(iteration.operands()[0].strides),
                      vector_of(iteration.operands()[1].strides)),
              offsets(sizes, a, b))
        << "seed " << seed << ", round " << round;
  }
}

TEST(View, MergesDimensionsThatLieEvenly) {
  EXPECT_EQ(contiguous(DType::kF32, nullptr, {2, 3, 4}).merged(1, 3)->sizes, (Sizes{2, 12}));
  EXPECT_EQ(view({2, 3}, {6, 2}).merged(0, 2)->strides, (Sizes{2}));
  EXPECT_EQ(view({2, 1, 3}, {3, 77, 1}).merged(0, 3)->sizes, (Sizes{6}));
  EXPECT_EQ(view({}, {}).merged(0, 0)->sizes, (Sizes{1}));
  EXPECT_FALSE(view({2, 3}, {1, 2}).merged(0, 2).has_value());
}

TEST(View, KnowsWhetherItOverlapsItself) {
  EXPECT_FALSE(view({2, 3}, {3, 1}).overlaps_itself());
  EXPECT_FALSE(view({1, 3}, {0, 1}).overlaps_itself());
  EXPECT_TRUE(view({2, 3}, {0, 1}).overlaps_itself());
  EXPECT_TRUE(view({3, 3}, {1, 1}).overlaps_itself());
  EXPECT_FALSE(view({0, 3}, {1, 1}).overlaps_itself());
}

TEST(View, KnowsWhichDenseViewsShareElements) {
  float memory[8];
  const View whole = contiguous(DType::kF32, &memory[0], {2, 3}),
             shifted = contiguous(DType::kF32, &memory[1], {2, 3});
  const View rest = contiguous(DType::kF32, &memory[6], {2}),
             empty = contiguous(DType::kF32, &memory[1], {0});
  const View even = {DType::kF32, &memory[0], {3}, {2}}, odd = {DType::kF32, &memory[1], {3}, {2}};
  EXPECT_TRUE(whole.overlaps(whole));
  EXPECT_TRUE(whole.same_as(whole));
  EXPECT_TRUE(whole.overlaps(shifted));
  EXPECT_FALSE(whole.same_as(shifted));
  EXPECT_FALSE(whole.overlaps(rest));
  EXPECT_FALSE(whole.overlaps(empty));
  EXPECT_FALSE(even.overlaps(odd));
}

TEST(View, BroadcastsAsPyTorch) {
  EXPECT_EQ(broadcast(Sizes{2, 1, 4}, Sizes{3, 1}), (Sizes{2, 3, 4}));
  EXPECT_EQ(broadcast(Sizes{}, Sizes{0}), (Sizes{0}));
  EXPECT_EQ(broadcast(Sizes{1}, Sizes{0, 2}), (Sizes{0, 2}));
  EXPECT_EQ(broadcast(Sizes{2}, Sizes{3}), std::nullopt);
  EXPECT_EQ(broadcast(Sizes{0}, Sizes{3}), std::nullopt);
}

}  // namespace
}  // namespace anynpu::ops
