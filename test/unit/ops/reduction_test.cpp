#include "ops/reduce/reduction.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "tile/reduce.h"
#include "unit/ops/elements.h"

namespace anynpu::ops {
namespace {

/// Results of a reduction of `x` over some dimensions.
struct Reduced {
  std::vector<Elements> results;
  size_t launches;
};

Reduced reduced(const LineOp& op, DType common, const View& x, Dims over) {
  Reduced made = {{}, 0};
  std::vector<View> views;
  const auto sizes = reduced_sizes(x.sizes, over, false);
  for (size_t i = 0; i < op.formula.results; ++i) {
    const DType dtype = op.gives(i) == Holds::kPosition ? DType::kI64
                        : op.gives(i) == Holds::kTruth  ? DType::kBool
                                                        : common;
    View view = contiguous(dtype, nullptr, sizes);
    made.results.emplace_back(dtype, static_cast<size_t>(view.elements()));
    view.data = made.results.back().data();
    views.push_back(std::move(view));
  }
  std::vector<std::unique_ptr<char[]>> memory;
  const auto launches = prepare(Reduction{op, common, views, x, over}, [&](int64_t bytes) {
    return memory.emplace_back(new char[static_cast<size_t>(bytes)]).get();
  });
  for (const Launch& launch : launches) launch.run(1);
  made.launches = launches.size();
  return made;
}

/// As one kernel over contiguous lines, which is what the order of a reduction is defined by.
std::vector<Elements> by_definition(const LineOp& op, DType common, Elements& x, int64_t lines) {
  const auto length = static_cast<int64_t>(x.count()) / lines;
  std::vector<Elements> results;
  std::vector<View> views;
  for (size_t i = 0; i < op.formula.results; ++i) {
    const DType dtype = op.gives(i) == Holds::kPosition ? DType::kI64
                        : op.gives(i) == Holds::kTruth  ? DType::kBool
                                                        : common;
    results.emplace_back(dtype, static_cast<size_t>(lines));
    views.push_back({dtype, results.back().data(), {lines, length}, {1, 0}});
  }
  views.push_back(contiguous(x.dtype(), x.data(), {lines, length}));
  prepare(op, common, views, 1).run(1);
  return results;
}

class EveryReduction : public testing::TestWithParam<std::string_view> {};

/// Long lines that are reduced in parts, and dimensions that are copied to one line, have the bits of one
/// line after the other.
TEST_P(EveryReduction, HasTheBitsOfOneLineHoweverItIsDoneAndHoweverItLies) {
  const LineOp& op = line_op(GetParam());
  struct Shape {
    std::vector<int64_t> sizes;
    std::initializer_list<size_t> over;
    std::vector<size_t> order;  // of the dimensions in memory, the outermost first
    size_t launches;
  };
  const Shape shapes[] = {
      {{100003}, {0}, {0}, 2},                   // a tail
      {{20 * tile::kReduceBlock}, {0}, {0}, 2},  // none
      {{3, 30011}, {1}, {0, 1}, 2},              // lines beside each other
      {{3, 30011}, {1}, {1, 0}, 2},              // along rows
      {{300, 5000}, {1}, {0, 1}, 1},             // many lines
      {{7, 5, 9001}, {1, 2}, {0, 1, 2}, 2},      // dimensions with one stride
      {{7, 5, 9001}, {0, 2}, {0, 1, 2}, 3},      // without: they are copied
      {{250, 400}, {0, 1}, {1, 0}, 3},           // turned
      {{4, 3, 5}, {0, 2}, {1, 2, 0}, 2},         // short
      {{2, 3}, {}, {0, 1}, 1},                   // of nothing
  };
  std::mt19937_64 random(1);
  for (const DType common : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
    if (!op.dtypes.contains(common)) continue;
    for (const Shape& shape : shapes) {
      Dims over;
      for (const size_t dim : shape.over) over.set(dim);
      View x = contiguous(common, nullptr, shape.sizes);
      const auto count = static_cast<size_t>(x.elements());
      std::vector<int64_t> places(shape.sizes.size());
      int64_t stride = 1;
      for (size_t i = shape.order.size(); i-- > 0; stride *= shape.sizes[shape.order[i]])
        x.strides[shape.order[i]] = stride;
      Elements laid(common, count), lines(common, count);
      // Lines one after the other: the dimensions that stay, then the others.
      std::vector<size_t> order;
      for (const bool reduces : {false, true})
        for (size_t d = 0; d < shape.sizes.size(); ++d)
          if (over[d] == reduces) order.push_back(d);
      for (size_t i = 0; i < count; ++i) {
        auto rest = static_cast<int64_t>(i), place = int64_t{0};
        for (size_t d = order.size(); d-- > 0; rest /= shape.sizes[order[d]])
          place += rest % shape.sizes[order[d]] * x.strides[order[d]];
        const auto value = static_cast<int64_t>(random() % 2001) - 1000;
        for (const auto& [memory, at] : {std::pair(&laid, static_cast<size_t>(place)), std::pair(&lines, i)})
          is_integer(common) ? memory->set(at, value) : memory->set(at, static_cast<double>(value) / 997);
      }
      x.data = laid.data();
      const Reduced ours = reduced(op, common, x, over);
      int64_t kept = 1;
      for (const int64_t size : reduced_sizes(shape.sizes, over, false)) kept *= size;
      const auto expected = by_definition(op, common, lines, kept);
      EXPECT_EQ(ours.launches, shape.launches);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(ours.results[i] == expected[i])
            << op.name << " of " << name_of(common) << ", case " << &shape - &shapes[0] << ", result " << i;
    }
  }
}

std::vector<std::string_view> names_of_reductions() {
  std::vector<std::string_view> names;
  for (const LineOp& op : line_ops())
    if (op.reduces()) names.push_back(op.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryReduction, testing::ValuesIn(names_of_reductions()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Reduction, OfAPositionThatIsInALaterPart) {
  constexpr int64_t kSize = 90000;
  std::vector<float> x(kSize, 1);
  const auto position = [&](const char* name) {
    const View view = contiguous(DType::kF32, x.data(), {kSize});
    Reduced made = reduced(line_op(name), DType::kF32, view, Dims(1));
    return made.results.back().get<int64_t>(0);
  };
  EXPECT_EQ(position("ArgMax"), 0);  // the first of equal ones
  x[70001] = x[80001] = 2;
  EXPECT_EQ(position("ArgMax"), 70001);
  EXPECT_EQ(position("MaxDim"), 70001);
  EXPECT_EQ(position("ArgMin"), 0);
  x[85000] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(position("ArgMax"), 85000);
  EXPECT_EQ(position("ArgMin"), 85000);
}

TEST(Reduction, MeansDivideByTheWholeLength) {
  std::vector<float> x(100000, 3);
  const View view = contiguous(DType::kF32, x.data(), {100000});
  EXPECT_EQ(reduced(line_op("Mean"), DType::kF32, view, Dims(1)).results[0].get<double>(0), 3);
}

}  // namespace
}  // namespace anynpu::ops
