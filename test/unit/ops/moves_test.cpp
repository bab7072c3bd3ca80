// Operators that move data by indices, and random ones: machine code against the interpreter and by hand.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <random>

#include "base/error.h"
#include "ops/indexing.h"
#include "ops/random.h"
#include "tile/philox.h"
#include "unit/ops/elements.h"

namespace anynpu::ops {
namespace {

/// A call over memory of its own, in any order of dimensions.
struct Case {
  const IndexingOp& op;
  size_t dim;
  Elements indexed, index, values;
  std::vector<int64_t> indexed_sizes, sizes;
  std::vector<std::vector<int64_t>> strides = {};  // of the three

  IndexingCall call() {
    return {op,
            dim,
            {indexed.dtype(), indexed.data(), indexed_sizes, strides[0]},
            {index.dtype(), index.data(), sizes, strides[1]},
            {values.dtype(), values.data(), sizes, strides[2]}};
  }
};

Case random_case(const IndexingOp& op, DType dtype, std::mt19937_64& random) {
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  std::vector<int64_t> sizes, indexed_sizes;
  for (int64_t d = 1 + below(3); d > 0; --d) sizes.push_back(1 + below(50));
  const auto dim = static_cast<size_t>(below(static_cast<int64_t>(sizes.size())));
  indexed_sizes = sizes;
  for (int64_t& size : indexed_sizes) size += below(3);
  indexed_sizes[dim] = 1 + below(40);
  const auto strides_of = [&](const std::vector<int64_t>& of, std::optional<size_t> only) {
    std::vector<size_t> order(of.size());
    std::iota(order.begin(), order.end(), 0);
    if (below(2) == 0) std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(of.size(), 0);
    int64_t stride = 1;
    for (const size_t d : order)
      if (!only || d == *only) strides[d] = stride, stride *= of[d];
    return std::pair(strides, static_cast<size_t>(stride));
  };
  const auto [indexed_strides, indexed_count] = strides_of(indexed_sizes, {});
  const auto [index_strides, index_count] =
      strides_of(sizes, op.skips || below(2) == 0 ? std::optional(dim) : std::nullopt);
  const auto [values_strides, values_count] = strides_of(sizes, {});
  Case test = {op,
               dim,
               Elements(dtype, indexed_count),
               Elements(below(2) == 0 ? DType::kI32 : DType::kI64, index_count),
               Elements(dtype, values_count),
               indexed_sizes,
               sizes};
  for (size_t i = 0; i < indexed_count; ++i) test.indexed.set<int64_t>(i, below(100));
  for (size_t i = 0; i < index_count; ++i) test.index.set<int64_t>(i, below(indexed_sizes[dim]));
  for (size_t i = 0; i < values_count; ++i) test.values.set<int64_t>(i, below(100));
  test.strides = {indexed_strides, index_strides, values_strides};
  return test;
}

int64_t place(const std::vector<int64_t>& at, const std::vector<int64_t>& strides) {
  return std::inner_product(at.begin(), at.end(), strides.begin(), int64_t{0});
}

/// What the operator's definition says.
void apply(Case& test, int64_t skipped) {
  std::vector<int64_t> at(test.sizes.size(), 0);
  for (bool more = true; more;) {
    const auto position = test.index.get<int64_t>(static_cast<size_t>(place(at, test.strides[1])));
    auto there = at;
    there[test.dim] = position;
    const auto indexed = static_cast<size_t>(place(there, test.strides[0])),
               value = static_cast<size_t>(place(at, test.strides[2]));
    if (!test.op.adds)
      test.values.set(value, test.indexed.get<double>(indexed));
    else if (!test.op.skips || position != skipped)
      test.indexed.set(indexed, test.indexed.get<double>(indexed) + test.values.get<double>(value));
    size_t d = 0;
    while (d < at.size() && ++at[d] == test.sizes[d]) at[d++] = 0;
    more = d < at.size();
  }
}

/// All that an index may name.
void clear(Case& test) {
  std::vector<int64_t> at(test.sizes.size(), 0);
  for (bool more = true; more;) {
    test.indexed.set<int64_t>(static_cast<size_t>(place(at, test.strides[0])), 0);
    size_t d = 0;
    while (d < at.size() && ++at[d] == (d == test.dim ? test.indexed_sizes : test.sizes)[d]) at[d++] = 0;
    more = d < at.size();
  }
}

class EveryIndexingOp : public testing::TestWithParam<size_t> {};

TEST_P(EveryIndexingOp, AgreesWithItsDefinitionAndItsInterpretation) {
  const IndexingOp& op = indexing_ops()[GetParam()];
  const auto seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kI8, DType::kI64})
    for (int round = 0; round < 6; ++round) {
      const Case test = random_case(op, dtype, random);
      Case jitted = test, interpreted = test, expected = test;
      const bool from_zero = op.adds && round % 2 == 1;
      if (from_zero) clear(expected);
      for (Case* made : {&jitted, &interpreted}) {
        IndexingCall call = made->call();
        call.skipped = 1;
        call.from_zero = from_zero;
        const Launch launch = prepare(call);
        made == &jitted ? launch.run(1) : interpret(launch);
      }
      apply(expected, 1);
      EXPECT_TRUE(jitted.indexed == interpreted.indexed && jitted.values == interpreted.values) << op.name;
      EXPECT_TRUE(jitted.indexed == expected.indexed && jitted.values == expected.values)
          << op.name << " of " << tile::name_of(dtype);
      if (HasFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryIndexingOp, testing::Range(size_t{0}, indexing_ops().size()),
                         [](const auto& info) { return std::string(indexing_ops()[info.param].name); });

TEST(Indexing, ABadIndexIsNamedAndTheOthersAreDone) {
  float x[] = {1, 2, 3}, y[] = {0, 0, 0};
  int64_t index[] = {2, -4, 0};
  const IndexingCall call = {indexing_op("Gather"), 0, contiguous(DType::kF32, x, {3}),
                             contiguous(DType::kI64, index, {3}), contiguous(DType::kF32, y, {3})};
  try {
    prepare(call).run(1);
    FAIL() << "nothing was raised";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_STREQ(error.what(),
                 "Gather: index -4 is out of range of a dimension of size 3; 0 to 2 are accepted");
  }
  EXPECT_EQ(y[0], 3);
  EXPECT_EQ(y[2], 1);
}

TEST(Indexing, OfNoPositionsNoneIsAccepted) {
  float y[] = {0};
  int64_t index[] = {0};
  const IndexingCall call = {indexing_op("Gather"), 0, contiguous(DType::kF32, y, {0}),
                             contiguous(DType::kI64, index, {1}), contiguous(DType::kF32, y, {1})};
  try {
    prepare(call).run(1);
    FAIL() << "nothing was raised";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "Gather: index 0 is out of range of a dimension of size 0; none is accepted");
  }
}

TEST(Random, EachElementHasItsWordOfPhiloxWhateverTheBlocks) {
  for (const int64_t count : {1, 3, 4, 7, 30003}) {
    std::vector<float> one(static_cast<size_t>(count)), many(one.size());
    for (auto* result : {&one, &many}) {
      const Operand tensor = {.dtype = DType::kF32, .data = result->data()};
      const tile::Literal numbers[] = {0.0, 1.0};
      const Launch launch =
          prepare(RandomCall{random_op("Uniform"), DType::kF32, count, {&tensor, 1}, numbers, 5, 6});
      if (result == &one)
        interpret(launch);
      else
        for (int64_t block = launch.blocks() - 1; block >= 0; --block) launch.run(block, block + 1);
    }
    EXPECT_EQ(one, many);
    const int64_t counters = count / 4;
    for (int64_t i = 0; i < count; ++i) {
      const bool last = i >= 4 * counters;
      const auto words = tile::philox4x32(5, 6, static_cast<uint64_t>(last ? counters : i % counters));
      const uint32_t word = words[static_cast<size_t>(last ? i - 4 * counters : i / counters)];
      ASSERT_EQ(many[static_cast<size_t>(i)], static_cast<float>(word >> 8) / (1 << 24))
          << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace anynpu::ops
