#include "ops/lines.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>

#include "unit/ops/elements.h"

namespace anynpu::ops {
namespace {

using tile::Literal;

/// A call over memory of its own.
struct Case {
  const LineOp& op;
  DType dtype;
  std::vector<int64_t> sizes;
  int64_t length;
  std::vector<Elements> memory;               // the results', then the operands'
  std::vector<std::vector<int64_t>> strides;  // in elements; the last one is along the line

  int64_t lines() const {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  }
  size_t place(size_t operand, int64_t line, int64_t i) const {
    int64_t at = i * strides[operand].back();
    for (size_t d = 0; d < sizes.size(); ++d) {
      at += line % sizes[d] * strides[operand][d];
      line /= sizes[d];
    }
    return static_cast<size_t>(at);
  }
};

constexpr double kNumber = 1e-3;  // eps

/// Results of a call, in memory of their own.
template <class Run>
std::vector<Elements> results_of(Case test, const Run& run) {
  auto strides = test.strides;
  std::vector<Operand> operands;
  for (size_t i = 0; i < test.memory.size(); ++i) {
    for (int64_t& stride : strides[i]) stride *= static_cast<int64_t>(tile::size_of(test.memory[i].dtype()));
    operands.push_back({test.memory[i].dtype(), test.memory[i].data(), strides[i]});
  }
  const std::vector<Literal> numbers(static_cast<size_t>(test.op.numbers), kNumber);
  run(LineCall{test.op, test.dtype, test.sizes, test.length, operands, numbers});
  test.memory.erase(test.memory.begin() + static_cast<int64_t>(test.op.formula.results), test.memory.end());
  return std::move(test.memory);
}

bool is_short(const LineOp& op, size_t i) {
  const size_t results = op.formula.results;
  return ((i < results ? op.short_results >> i : op.one_for_line >> (i - results)) & 1) != 0;
}

DType type_of(const LineOp& op, size_t i, DType common) {
  const size_t results = op.formula.results;
  const Holds holds = i < results ? op.gives(i) : op.takes(i - results);
  return holds == Holds::kPosition ? DType::kI64 : holds == Holds::kTruth ? DType::kBool : common;
}

/// Random sizes; lines adjacent, side by side, or apart; operands that stay in the dimensions across.
Case random_case(const LineOp& op, DType dtype, std::mt19937_64& random) {
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  constexpr int64_t kLengths[] = {1, 0, 5, 33, 100, 5000};
  Case test = {op, dtype, {}, kLengths[below(6)], {}, {}};
  if (!op.of_nothing && test.length == 0) test.length = 1;
  for (int64_t d = 1 + below(3); d > 0; --d) test.sizes.push_back(1 + below(test.length > 1000 ? 2 : 9));
  const int64_t layout = below(3);  // of the line: adjacent, after the first dimension, apart
  const size_t count = op.formula.results + static_cast<size_t>(op.operands);
  for (size_t i = 0; i < count; ++i) {
    const int64_t length = is_short(op, i) ? 1 : test.length;
    std::vector<int64_t> strides;
    int64_t stride = layout == 2 ? 2 : 1, along = 0;
    if (layout != 1) along = stride, stride *= std::max<int64_t>(1, length);
    for (const int64_t size : test.sizes) {
      const bool stays = i >= op.formula.results && below(5) == 0;
      strides.push_back(stays ? 0 : stride);
      stride *= size;
      if (layout == 1 && strides.size() == 1) along = stride, stride *= std::max<int64_t>(1, length);
    }
    const bool repeats = i >= op.formula.results && below(8) == 0;
    strides.push_back(is_short(op, i) || repeats ? 0 : along);
    Elements memory(type_of(op, i, dtype), static_cast<size_t>(stride));
    const bool special = below(8) == 0;
    for (size_t e = 0; e < memory.count(); ++e) {
      if (is_integer(memory.dtype()))
        memory.set(
            e, memory.dtype() == DType::kBool ? below(2) : below(7) - (memory.dtype() == DType::kU8 ? 0 : 3));
      else
        memory.set(e, special ? some_number(random, -3, 3) : static_cast<double>(below(6001) - 3000) / 1000);
    }
    test.memory.push_back(std::move(memory));
    test.strides.push_back(std::move(strides));
  }
  return test;
}

long double greatest(DType dtype) {
  return tile::visit(dtype, []<class T>(std::type_identity<T>) -> long double {
    if constexpr (std::is_arithmetic_v<T>) return static_cast<long double>(std::numeric_limits<T>::max());
    return std::is_same_v<T, tile::Half> ? 65504 : 3.3895314e38;
  });
}

void expect_reference(const Case& test, const std::vector<Elements>& results) {
  const size_t first = test.op.formula.results;
  for (int64_t line = 0; line < test.lines(); ++line) {
    std::vector<Line> arguments;
    for (size_t i = first; i < test.memory.size(); ++i) {
      std::vector<Rounded> values;
      for (int64_t e = 0; e < (is_short(test.op, i) ? 1 : test.length); ++e)
        values.emplace_back(test.memory[i].get<double>(test.place(i, line, e)));
      arguments.emplace_back(std::move(values));
    }
    for (int i = 0; i < test.op.numbers; ++i) arguments.emplace_back(kNumber);
    const auto expected = test.op.formula.reference(LinesAlong(test.length), arguments);
    for (size_t i = 0; i < first; ++i)
      for (int64_t e = 0; e < (is_short(test.op, i) ? 1 : test.length); ++e) {
        const double actual = results[i].get<double>(test.place(i, line, e));
        const Rounded& exact = expected[i][static_cast<size_t>(e)];
        const auto wanted = static_cast<double>(exact.value);
        if (!std::isfinite(actual) && !std::isfinite(wanted)) continue;         // inf - inf, in another order
        if (std::abs(exact.value) > greatest(results[i].dtype())) continue;     // wrapped around, or infinite
        if (test.op.name.ends_with("rod") && !std::isfinite(actual)) continue;  // so was it on the way
        const DType compute = compute_type(test.op, test.dtype);
        const double tolerance =
            is_integer(results[i].dtype())
                ? 0
                : 0.5 * ulp(test.dtype, wanted) + ulp(compute, 1) * exact.error + ulp(compute, 0);
        ASSERT_TRUE(actual == wanted || std::abs(actual - wanted) <= tolerance)
            << test.op.name << " of " << tile::name_of(test.dtype) << ", result " << i << ", line " << line
            << " of length " << test.length << ", element " << e << ": " << actual << ", not " << wanted;
      }
  }
}

class EveryLineOp : public testing::TestWithParam<size_t> {};

TEST_P(EveryLineOp, AgreesWithItsReferenceAndItsInterpretation) {
  const LineOp& op = line_ops()[GetParam()];
  const auto seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int number = 0; number < tile::kDTypes; ++number) {
    const auto dtype = static_cast<DType>(number);
    if (!op.dtypes.contains(dtype)) continue;
    for (int round = 0; round < (is_integer(dtype) ? 1 : 3); ++round) {
      const Case test = random_case(op, dtype, random);
      const auto jitted = results_of(test, [](const LineCall& call) { prepare(call).run(1); });
      const auto interpreted = results_of(test, [](const LineCall& call) { interpret(prepare(call)); });
      for (size_t i = 0; i < jitted.size(); ++i)
        EXPECT_TRUE(jitted[i] == interpreted[i])
            << op.name << " of " << tile::name_of(dtype) << ", result " << i;
      expect_reference(test, jitted);
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryLineOp, testing::Range(size_t{0}, line_ops().size()),
                         [](const auto& info) { return std::string(line_ops()[info.param].name); });

/// A line's bits do not depend on how it lies, nor on what is computed beside it.
TEST(Lines, HaveTheSameBitsHoweverTheyLie) {
  constexpr int64_t kLines = 70, kLength = 5000;
  std::mt19937_64 random(1);
  std::vector<float> x(kLines * kLength), y(x.size()), turned(x.size()), turned_y(x.size());
  for (float& value : x) value = static_cast<float>(random() % 1000) / 100;
  for (int64_t i = 0; i < kLines; ++i)
    for (int64_t e = 0; e < kLength; ++e)
      turned[static_cast<size_t>(e * kLines + i)] = x[static_cast<size_t>(i * kLength + e)];
  const auto run = [](std::vector<float>& from, std::vector<float>& to, std::array<int64_t, 2> strides) {
    const Operand operands[] = {{DType::kF32, to.data(), strides}, {DType::kF32, from.data(), strides}};
    const int64_t sizes[] = {kLines};
    prepare(LineCall{line_op("Softmax"), DType::kF32, sizes, kLength, operands}).run(1);
  };
  run(x, y, {4 * kLength, 4});
  run(turned, turned_y, {4, 4 * kLines});
  for (int64_t i = 0; i < kLines; ++i)
    for (int64_t e = 0; e < kLength; ++e)
      ASSERT_EQ(y[static_cast<size_t>(i * kLength + e)], turned_y[static_cast<size_t>(e * kLines + i)]);
}

}  // namespace
}  // namespace anynpu::ops
