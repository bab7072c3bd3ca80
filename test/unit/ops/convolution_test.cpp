#include "ops/cube/convolution.h"

#include <array>
#include <iterator>

#include "base/error.h"
#include "convolution_case.h"

namespace anynpu::ops::convolutions {
namespace {

const Case kCases[] = {
    {kF32, 2, 1, 3, 5, {9, 11}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
    {kF32, 1, 1, 40, 13, {7, 7}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
    {kF32, 3, 1, 33, 70, {5, 6}, {1, 1}, {{1, 1}, {0, 0}, {1, 1}}},
    {kF32, 2, 1, 300, 4, {4, 5}, {1, 1}, {{2, 2}, {0, 0}, {1, 1}}},
    {kF32, 1, 1, 3, 8, {23, 22}, {7, 7}, {{2, 2}, {3, 3}, {1, 1}}},
    {kF32, 2, 1, 5, 6, {17, 20}, {3, 2}, {{2, 3}, {1, 0}, {2, 3}}},
    {kF32, 1, 1, 4, 3, {9, 8}, {2, 3}, {{3, 2}, {2, 1}, {2, 2}}},
    {kF32, 2, 3, 2, 4, {6, 7}, {3, 3}, {{1, 2}, {1, 1}, {1, 1}}},
    {kF32, 1, 6, 1, 1, {12, 9}, {3, 5}, {{1, 1}, {1, 2}, {1, 1}}},
    {kF32, 1, 1, 2, 3, {2, 3}, {5, 5}, {{1, 1}, {2, 2}, {1, 1}}},
    {kF32, 2, 1, 7, 9, {31}, {4}, {{3}, {2}, {2}}},
    {kF32, 1, 1, 3, 4, {5, 6, 7}, {2, 3, 2}, {{2, 1, 2}, {1, 1, 0}, {1, 2, 1}}},
    {kF32, 0, 1, 3, 4, {5, 6}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
    {kF32, 2, 1, 0, 4, {5, 6}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
    {kF32, 1, 1, 2, 200, {20, 20}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
    {DType::kF64, 2, 1, 35, 9, {6, 5}, {3, 3}, {{2, 1}, {1, 1}, {1, 1}}},
    {DType::kF16, 2, 2, 17, 9, {6, 9}, {3, 3}, {{1, 2}, {1, 1}, {1, 1}}},
    {DType::kBF16, 1, 1, 9, 20, {8, 10}, {3, 1}, {{1, 1}, {1, 0}, {1, 1}}},
};

TEST_F(ConvolutionTest, IsTheSumInTheOrderOfTheContract) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (size_t i = 0; i < std::size(kCases); ++i)
    for (int turn = 0; turn < 2; ++turn) {
      SCOPED_TRACE(concat("case ", i, ", turn ", turn));
      compare(kCases[i]);
      if (HasFatalFailure()) return;
    }
}

TEST_F(ConvolutionTest, IsTheSameSumInBlocks) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (size_t i = 0; i < std::size(kCases); ++i) {
    if (kCases[i].groups != 1) continue;
    block_ = i == 1 ? 3 : 16;
    SCOPED_TRACE(concat("case ", i, ", blocks of ", block_));
    compare(kCases[i]);
    if (HasFatalFailure()) return;
  }
}

TEST_F(ConvolutionTest, IsTheSameSumOfGroupsInBlocks) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const Case cases[] = {
      {kF32, 2, 37, 1, 1, {6, 7}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
      {DType::kF16, 1, 20, 1, 1, {9, 8}, {3, 2}, {{2, 1}, {1, 0}, {1, 2}}},
      {kF32, 1, 18, 1, 1, {12, 13}, {9, 9}, {{1, 2}, {4, 4}, {1, 1}}},
      {kF32, 2, 17, 1, 1, {5, 6}, {1, 1}, {{1, 1}, {0, 0}, {1, 1}}},
      {kF32, 1, 19, 1, 1, {3, 4, 5}, {2, 3, 2}, {{1, 2, 1}, {1, 1, 0}, {1, 1, 2}}},
      {kF32, 2, 9, 4, 4, {7, 6}, {3, 3}, {{2, 1}, {1, 1}, {1, 1}}},
      {DType::kF64, 1, 5, 8, 8, {11}, {3}, {{2}, {1}, {1}}},
      {kF32, 2, 3, 16, 32, {5, 6}, {3, 3}, {{1, 2}, {1, 1}, {1, 1}}},
      {DType::kBF16, 1, 2, 32, 16, {6, 5}, {2, 3}, {{1, 1}, {0, 1}, {2, 1}}},
      {kF32, 0, 18, 1, 1, {5, 6}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}},
  };
  block_ = 16;
  for (size_t i = 0; i < std::size(cases); ++i) {
    SCOPED_TRACE(concat("case ", i));
    compare(cases[i]);
    if (HasFatalFailure()) return;
  }
}

TEST_F(ConvolutionTest, TakesBlocksOfWholeGroups) {
  const auto takes = [](int64_t groups, int64_t outputs, int64_t channels) {
    return Convolution{{1}, {0}, {1}, false, groups}.takes_blocks(outputs, channels, 16);
  };
  EXPECT_TRUE(takes(1, 5, 3));
  EXPECT_TRUE(takes(5, 5, 1));
  EXPECT_TRUE(takes(5, 40, 8));
  EXPECT_TRUE(takes(5, 80, 16));
  EXPECT_TRUE(takes(2, 32, 48));
  EXPECT_FALSE(takes(5, 10, 1));  // the results of a group are not where its channel is
  EXPECT_FALSE(takes(4, 48, 12));
  EXPECT_FALSE(takes(2, 40, 16));
  EXPECT_FALSE(takes(3, 5, 1));
  EXPECT_FALSE(takes(0, 5, 1));
  EXPECT_FALSE(takes(2, 2, 0));
}

TEST_F(ConvolutionTest, IsRightOfAnySizes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const auto below = [&](int64_t most) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(most));
  };
  for (int turn = 0; turn < 30; ++turn) {
    Case c = {std::array{kF32, kF32, DType::kF64, DType::kBF16}[random_() % 4],
              1 + below(3),
              1 + below(3),
              1 + below(20),
              1 + below(20),
              {},
              {},
              {}};
    std::string text = concat(c.batch, " ", c.groups, " ", c.channels, " ", c.outputs, ":");
    for (int64_t d = 1 + below(3); d-- > 0;) {
      c.taps.push_back(1 + below(4));
      c.convolution.stride.push_back(1 + below(3));
      c.convolution.padding.push_back(below(3));
      c.convolution.dilation.push_back(1 + below(3));
      const int64_t reach = (c.taps.back() - 1) * c.convolution.dilation.back() + 1;
      c.sizes.push_back(std::max<int64_t>(1, reach - 2 * c.convolution.padding.back()) + below(9));
      text += concat(" ", c.sizes.back(), " ", c.taps.back(), " ", c.convolution.stride.back(), " ",
                     c.convolution.padding.back(), " ", c.convolution.dilation.back(), ";");
    }
    SCOPED_TRACE(text);
    compare(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(ConvolutionTest, MachineCodeDoesWhatTheInterpreterDoes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {kF32, DType::kF16})
    compare({dtype, 2, 2, 3, 7, {6, 9}, {3, 3}, {{1, 2}, {1, 1}, {1, 1}}}, true);
  block_ = 4;
  compare({kF32, 2, 1, 6, 7, {6, 9}, {3, 3}, {{1, 2}, {1, 1}, {1, 1}}}, true);
  compare({kF32, 2, 6, 1, 1, {6, 9}, {3, 3}, {{1, 2}, {1, 1}, {1, 1}}}, true);
}

TEST_F(ConvolutionTest, AnImageDoesNotDependOnTheOthers) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const Case c = {kF32, 9, 1, 40, 30, {7, 7}, {3, 3}, {{1, 1}, {1, 1}, {1, 1}}};
  Tensor image(kF32, c.image(), {0, 1, 2, 3}), weight(kF32, c.weight(), {0, 1, 2, 3}),
      whole(kF32, c.out(), {0, 1, 2, 3});
  image.fill(random_);
  weight.fill(random_);
  run([&](const TakeMemory& take) {
    return c.convolution.forward(image.view, weight.view, {}, whole.view, take);
  });
  Case one = c;
  one.batch = 1;
  for (int64_t n = 0; n < c.batch; ++n) {
    Tensor out(kF32, one.out(), {0, 1, 2, 3});
    View part = image.view;
    part.sizes[0] = 1;
    part.data = static_cast<char*>(part.data) + n * part.strides[0] * 4;
    run([&](const TakeMemory& take) { return c.convolution.forward(part, weight.view, {}, out.view, take); });
    for_each(one.out(), [&](const Sizes& index) {
      Sizes there = index;
      there[0] = n;
      ASSERT_EQ(out.get(index), whole.get(there));
    });
  }
}

TEST_F(ConvolutionTest, SaysWhatDoesNotFit) {
  Tensor image(kF32, {1, 4, 8, 8}, {0, 1, 2, 3}), weight(kF32, {6, 3, 3, 3}, {0, 1, 2, 3}),
      out(kF32, {1, 6, 6, 6}, {0, 1, 2, 3});
  const Convolution convolution = {{1, 1}, {0, 0}, {1, 1}};
  try {
    run([&](const TakeMemory& take) {
      return convolution.forward(image.view, weight.view, {}, out.view, take);
    });
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("f32[1, 4, 8, 8] by f32[6, 3, 3, 3] to f32[1, 6, 6, 6]"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace anynpu::ops::convolutions
