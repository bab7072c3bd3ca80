#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "tile/text.h"
#include "unit/ops/elements.h"

namespace anynpu::ops {
namespace {

using tile::Literal;

/// A call over memory of its own: sizes and strides as a test wants them.
struct Case {
  const Elementwise& op;
  size_t choice;
  DType common;
  std::vector<int64_t> sizes;
  std::vector<Elements> memory;               // the result's, then the operands'
  std::vector<std::vector<int64_t>> strides;  // in elements, the innermost first

  int64_t elements() const {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  }
  /// The place of element number `i` in operand `operand`.
  size_t place(size_t operand, int64_t i) const {
    int64_t at = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      at += i % sizes[d] * strides[operand][d];
      i /= sizes[d];
    }
    return static_cast<size_t>(at);
  }
};

double number_of(const Number& number) { return number.otherwise.value_or(1); }

std::vector<Literal> numbers_of(const Case& test) {
  std::vector<Literal> numbers;
  for (const Number& number : test.op.numbers) {
    const double value = number_of(number);
    numbers.push_back(is_integer(compute_type(test.common)) ? Literal(static_cast<int64_t>(value)) : value);
  }
  return numbers;
}

/// What `run` makes of the results' memory; `run` gets the call.
template <class Run>
std::vector<Elements> results_of(Case test, const Run& run) {
  std::vector<std::vector<int64_t>> bytes;
  for (size_t i = 0; i < test.memory.size(); ++i) {
    bytes.push_back(test.strides[i]);
    for (int64_t& stride : bytes.back())
      stride *= static_cast<int64_t>(tile::size_of(test.memory[i].dtype()));
  }
  std::vector<Operand> operands;
  for (size_t i = 0; i < test.memory.size(); ++i)
    operands.push_back({test.memory[i].dtype(), test.memory[i].data(), bytes[i]});
  const auto numbers = numbers_of(test);
  run(ElementwiseCall{test.op, test.choice, test.common, test.sizes, operands, numbers});
  test.memory.erase(test.memory.begin() + static_cast<int64_t>(results_of(test.op)), test.memory.end());
  return test.memory;
}

/// Of the formula, in the compute type; and the result is rounded once more.
double tolerance(const Case& test, double expected, std::span<const double> arguments) {
  double unit = ulp(compute_type(test.common), expected);
  if (test.op.cancels)
    for (const double argument : arguments) unit = std::max(unit, ulp(compute_type(test.common), argument));
  return 0.5 * ulp(test.common, expected) + test.op.formulas[test.choice].ulps * unit;
}

void expect_close(const Case& test, double expected, double actual, std::span<const double> arguments) {
  if (std::isnan(expected) && std::isnan(actual)) return;
  if (expected == 0 && actual == 0) {
    EXPECT_EQ(std::signbit(actual), std::signbit(expected));
  }
  Elements rounded(test.common, 1);  // perhaps to infinity
  rounded.set(0, expected);
  EXPECT_TRUE(actual == rounded.get<double>(0) ||
              std::abs(actual - expected) <= tolerance(test, expected, arguments))
      << actual << ", not " << expected;
}

void expect_reference(const Case& test, const std::vector<Elements>& results) {
  const Formula& formula = test.op.formulas[test.choice];
  const auto arguments_at = [&]<class N>(int64_t i, std::type_identity<N>) {
    std::vector<N> arguments;
    for (size_t operand = results.size(); operand < test.memory.size(); ++operand)
      arguments.push_back(test.memory[operand].template get<N>(test.place(operand, i)));
    for (const Number& number : test.op.numbers) arguments.push_back(static_cast<N>(number_of(number)));
    return arguments;
  };
  for (int64_t i = 0; i < test.elements(); ++i) {
    for (size_t r = 0; r < results.size(); ++r) {
      SCOPED_TRACE(testing::Message() << test.op.name << " of " << tile::name_of(test.common) << ", result "
                                      << r << " at " << i);
      const size_t place = test.place(r, i);
      if (is_integer(test.common)) {
        Elements expected(test.common, 1);
        expected.set(0, formula.of_integers(arguments_at(i, std::type_identity<int64_t>()))[r]);
        ASSERT_EQ(results[r].get<int64_t>(place), expected.get<int64_t>(0));
      } else {
        const auto arguments = arguments_at(i, std::type_identity<double>());
        expect_close(test, formula.of_floats(arguments)[r], results[r].get<double>(place), arguments);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// Random sizes and layouts: adjacent, apart, transposed and broadcast operands.
Case random_case(const Elementwise& op, size_t choice, DType common, std::mt19937_64& random) {
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  Case test = {op, choice, common, {}, {}, {}};
  const int64_t dims = 1 + below(3);
  for (int64_t d = 0; d < dims; ++d) test.sizes.push_back(1 + below(d == 0 ? 70 : d == 1 ? 40 : 4));
  const int results = static_cast<int>(results_of(op));
  for (int operand = -results; operand < op.operands; ++operand) {
    const bool mask = operand >= 0 && is_mask(op, static_cast<size_t>(operand));
    std::vector<size_t> order(test.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    if (below(2) == 0) std::shuffle(order.begin(), order.end(), random);
    std::vector<int64_t> strides(order.size());
    int64_t stride = 1 + below(2);
    for (const size_t d : order) {
      strides[d] = operand >= 0 && below(4) == 0 ? 0 : stride;
      stride *= test.sizes[d];
    }
    Elements memory(mask || (operand < 0 && op.compares) ? DType::kBool : common,
                    static_cast<size_t>(stride));
    for (size_t i = 0; i < memory.count(); ++i) {
      if (!is_integer(memory.dtype())) {
        memory.set(i, some_number(random, op.domain.least, op.domain.most));
      } else {
        const double number = op.domain.least + static_cast<double>(below(1 << 20)) / (1 << 20) *
                                                    (op.domain.most - op.domain.least);
        memory.set(i, mask ? below(2) : static_cast<int64_t>(number));
      }
    }
    test.memory.push_back(std::move(memory));
    test.strides.push_back(std::move(strides));
  }
  return test;
}

class EveryOp : public testing::TestWithParam<size_t> {
 protected:
  const Elementwise& op() const { return elementwise_ops()[GetParam()]; }
};

TEST_P(EveryOp, AgreesWithItsReferenceAndItsInterpretation) {
  const auto seed = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < tile::kDTypes; ++i) {
    const auto common = static_cast<DType>(i);
    if (!op().dtypes.contains(common)) continue;
    for (size_t choice = 0; choice < op().formulas.size(); ++choice)
      for (int round = 0; round < 2; ++round) {
        const Case test = random_case(op(), choice, common, random);
        const auto jitted = results_of(test, [](const ElementwiseCall& call) { prepare(call).run(1); });
        const auto interpreted =
            results_of(test, [](const ElementwiseCall& call) { interpret(prepare(call)); });
        EXPECT_TRUE(jitted == interpreted) << op().name << " of " << tile::name_of(common);
        expect_reference(test, jitted);
        if (HasFailure()) return;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryOp, testing::Range(size_t{0}, elementwise_ops().size()),
                         [](const auto& info) { return std::string(elementwise_ops()[info.param].name); });

TEST(Elementwise, KernelsOfAdjacentTensorsReadWell) {
  const int64_t size = 10;
  const int64_t strides[] = {4};
  float x = 0, y = 0;
  const Operand operands[] = {{DType::kF32, &y, strides}, {DType::kF32, &x, strides}};
  const ElementwiseCall call = {elementwise_op("Silu"), 0, DType::kF32, {&size, 1}, operands, {}};
  EXPECT_EQ(tile::print(elementwise_kernel(call)),
            R"(kernel @Silu(%result: f32[?n0], %x0: f32[?n0]) grid((?n0 + (?part0 - 1)) / ?part0) {
  %0 = load %x0[block * ?part0] : tile<1 x min(?part0, ?n0 - block * ?part0), f32>
  %1 = neg %0
  %2 = exp %1
  %3 = add f32(1), %2
  %4 = div %0, %3
  store %result[block * ?part0], %4
}
)");
}

TEST(Elementwise, AnyNumberOfThreadsGivesTheSame) {
  constexpr int64_t kSize = 100003;
  std::vector<float> x(kSize), one(kSize), many(kSize);
  std::iota(x.begin(), x.end(), -5e4f);
  const int64_t strides[] = {4};
  for (auto* result : {&one, &many}) {
    const Operand operands[] = {{DType::kF32, result->data(), strides}, {DType::kF32, x.data(), strides}};
    const ElementwiseCall call = {elementwise_op("Silu"), 0, DType::kF32, {&kSize, 1}, operands, {}};
    const Launch launch = prepare(call);
    EXPECT_GT(launch.blocks(), 4);
    if (result == &one) {
      launch.run(1);
    } else {
      for (int64_t block = launch.blocks() - 1; block >= 0; --block) launch.run(block, block + 1);
    }
  }
  EXPECT_EQ(one, many);
}

}  // namespace
}  // namespace anynpu::ops
