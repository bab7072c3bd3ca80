#include "ops/nn/pooling.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "ops/lines.h"
#include "unit/ops/elements.h"

namespace anynpu::ops {
namespace {

class Pooling : public testing::Test {
 protected:
  int64_t below(int64_t most) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(most)); }

  /// Batch x channels x depth x height x width, the channels last or in their place.
  View laid(DType dtype, std::vector<int64_t> sizes, bool channels_last) const {
    if (!channels_last) return contiguous(dtype, nullptr, std::move(sizes));
    View made = contiguous(dtype, nullptr, {sizes[0], sizes[2], sizes[3], sizes[4], sizes[1]});
    made.strides = {made.strides[0], made.strides[4], made.strides[1], made.strides[2], made.strides[3]};
    made.sizes = std::move(sizes);
    return made;
  }
  static size_t count(const View& view) { return static_cast<size_t>(view.elements()); }

  /// Calls `body` with the number of each index, in order, and the element's place.
  template <class Body>
  static void for_each(const View& view, const Body& body) {
    for (int64_t i = 0; i < view.elements(); ++i) {
      int64_t at = 0;
      for (int64_t rest = i, d = static_cast<int64_t>(view.sizes.size()); d-- > 0;) {
        const auto dim = static_cast<size_t>(d);
        at += rest % view.sizes[dim] * view.strides[dim];
        rest /= view.sizes[dim];
      }
      body(static_cast<size_t>(i), static_cast<size_t>(at));
    }
  }

  Pool random_pool(const std::vector<int64_t>& sizes) {
    const std::array<int64_t, 3> of = {sizes[2], sizes[3], sizes[4]};
    if (below(3) == 0) return adaptive_pool(of, std::array{1 + below(4), 1 + below(4), 1 + below(4)});
    Pool pool;
    for (size_t d = 0; d < 3; ++d) {
      PoolAxis& axis = pool.axes[d];
      axis = {.taps = 1 + below(3), .stride = 1 + below(3), .dilation = 1};
      axis.padding = below(axis.taps / 2 + 1);
      axis.positions = pool_positions(of[d], axis, below(2) == 0);
    }
    pool.counts_padding = below(2) == 0;
    return pool;
  }

  const uint64_t seed_ = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  std::mt19937_64 random_{seed_};
};

/// Machine code and interpreter agree, in both layouts to the same bits.
TEST_F(Pooling, AgreesWithItsInterpretationInAnyLayout) {
  SCOPED_TRACE(testing::Message() << "seed " << seed_);
  for (int round = 0; round < 40; ++round) {
    const DType dtype = std::array{DType::kF32, DType::kF64, DType::kF16, DType::kBF16}[round % 4];
    const std::vector<int64_t> sizes = {1 + below(2), 1 + below(20), 3 + below(3), 3 + below(9),
                                        3 + below(30)};
    const Pool pool = random_pool(sizes);
    std::vector<int64_t> pooled = {sizes[0], sizes[1]};
    for (const PoolAxis& axis : pool.axes) pooled.push_back(axis.positions);
    std::vector<double> numbers(count(contiguous(dtype, nullptr, sizes)));
    for (double& number : numbers) number = static_cast<double>(below(64)) / 8;
    std::vector<std::vector<double>> found;  // results in the order of their indices, of each way
    for (const bool channels_last : {false, true}) {
      View x = laid(dtype, sizes, channels_last), y = laid(dtype, pooled, channels_last),
           places = laid(DType::kI64, pooled, channels_last);
      Elements from(dtype, count(x));
      for_each(x, [&](size_t i, size_t at) { from.set(at, numbers[i]); });
      x.data = from.data();
      for (const bool jitted : {true, false}) {
        Elements greatest(dtype, count(y)), indices(DType::kI64, count(y)), means(dtype, count(y));
        y.data = greatest.data();
        places.data = indices.data();
        auto launches = prepare_max_pool(pool, x, y, places);
        y.data = means.data();
        for (Launch& launch : prepare_average_pool(pool, x, y)) launches.push_back(std::move(launch));
        for (const Launch& launch : launches) jitted ? launch.run(1) : interpret(launch);
        found.emplace_back();
        for (const Elements* each : {&greatest, &indices, &means})
          for_each(y, [&](size_t, size_t at) { found.back().push_back(each->get<double>(at)); });
      }
    }
    for (const auto& other : found) ASSERT_EQ(found[0], other) << tile::name_of(dtype);
  }
}

/// Lines in pieces have the bits of lines whose elements are side by side.
TEST(Lines, InPiecesHaveTheBitsOfWholeOnes) {
  constexpr int64_t kPieces = 5, kLines = 37, kPiece = 50;
  std::mt19937_64 random(1);
  std::vector<float> apart(kPieces * kLines * kPiece), whole(apart.size());
  for (float& number : apart) number = static_cast<float>(random() % 1000) / 100;
  for (int64_t piece = 0; piece < kPieces; ++piece)
    for (int64_t line = 0; line < kLines; ++line)
      for (int64_t i = 0; i < kPiece; ++i)
        whole[static_cast<size_t>((line * kPieces + piece) * kPiece + i)] =
            apart[static_cast<size_t>((piece * kLines + line) * kPiece + i)];
  const LineOp& op = line_op("Sum");
  std::vector<float> of_pieces(kLines), of_whole(kLines);
  prepare_in_pieces(op, DType::kF32,
                    {{DType::kF32, of_pieces.data(), {kLines, kPieces, kPiece}, {1, 0, 0}},
                     {DType::kF32, apart.data(), {kLines, kPieces, kPiece}, {kPiece, kLines * kPiece, 1}}})
      .run(1);
  prepare(op, DType::kF32,
          {{DType::kF32, of_whole.data(), {kLines, kPieces * kPiece}, {1, 0}},
           contiguous(DType::kF32, whole.data(), {kLines, kPieces * kPiece})},
          1)
      .run(1);
  EXPECT_EQ(of_pieces, of_whole);
}

}  // namespace
}  // namespace anynpu::ops
