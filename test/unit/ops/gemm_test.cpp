#include "ops/cube/gemm.h"

#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <stdexcept>

#include "base/error.h"
#include "elements.h"
#include "jit/product_block.h"

namespace anynpu::ops {
namespace {

using Random = std::mt19937_64;

enum class Order : uint8_t { kRows, kColumns, kApart };

/// Matrices in some layout, with gaps of a few elements between rows or columns.
struct Matrices {
  Elements elements;
  View view;

  Matrices(DType dtype, std::array<int64_t, 3> sizes, Order order, int64_t gap = 1)
      : elements(dtype, static_cast<size_t>(sizes[0] * (sizes[1] + 3) * (sizes[2] + 3) * 2 + 64)) {
    view = {dtype, elements.data(), {sizes.begin(), sizes.end()}, {0, 0, 0}};
    const int64_t inner = order == Order::kApart ? 2 : 1;
    const size_t last = order == Order::kColumns ? 1 : 2, other = 3 - last;
    view.strides[last] = inner;
    view.strides[other] = inner * sizes[last] + gap;
    view.strides[0] = view.strides[other] * sizes[other] + 2;
  }
  size_t at(int64_t b, int64_t i, int64_t j) const {
    return static_cast<size_t>(b * view.strides[0] + i * view.strides[1] + j * view.strides[2]);
  }
  void fill(Random& random) {
    for (size_t i = 0; i < elements.count(); ++i) {
      if (is_integer(elements.dtype()))
        elements.set<int64_t>(i, static_cast<int64_t>(random() % 256) - 128);
      else
        elements.set<double>(i, std::normal_distribution<double>()(random));
    }
  }
};

/// In the order of the contract.
template <class T>
double sum_of(const Matrices& left, const Matrices& right, int64_t b, int64_t i, int64_t j) {
  T sum = 0;
  const int64_t k = left.view.sizes[2];
  for (int64_t first = 0; first < k; first += kDepth) {
    T block = 0;
    for (int64_t p = first; p < std::min(first + kDepth, k); ++p) {
      const auto x = static_cast<T>(left.elements.get<double>(left.at(b, i, p))),
                 y = static_cast<T>(right.elements.get<double>(right.at(b, p, j)));
      if constexpr (std::is_floating_point_v<T>)
        block = std::fma(x, y, block);
      else
        block += x * y;
    }
    sum = k <= kDepth ? block : sum + block;
  }
  return static_cast<double>(sum);
}

class Gemm : public testing::Test {
 protected:
  Gemm() { RecordProperty("seed", std::to_string(seed_)); }

  /// Runs a call's launches, in blocks of their own, so that their order does not matter.
  void run(const GemmCall& call, bool by_interpreter = false) {
    memory_.clear();
    const TakeMemory take = [&](int64_t bytes) {
      return memory_.emplace_back(static_cast<size_t>(bytes), std::byte{0xff}).data();
    };
    for (const Launch& launch : prepare(call, take)) {
      EXPECT_EQ(launch.blocks(), launch.code().blocks(launch.arguments()));
      if (by_interpreter) {
        interpret(launch);
      } else {
        for (int64_t block = launch.blocks(); block-- > 0;) launch.run(block, block + 1);
      }
    }
  }

  const uint64_t seed_ = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  Random random_{seed_};
  std::vector<std::vector<std::byte>> memory_;
};

double sum_of(DType sums, const Matrices& left, const Matrices& right, int64_t b, int64_t i, int64_t j) {
  if (sums == DType::kF64) return sum_of<double>(left, right, b, i, j);
  if (sums == DType::kI32) return sum_of<int32_t>(left, right, b, i, j);
  return sum_of<float>(left, right, b, i, j);
}

TEST_F(Gemm, IsTheSumInTheOrderOfTheContract) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  struct Case {
    DType dtype;
    std::array<int64_t, 4> sizes;  // batch, m, n, k
  };
  const Case cases[] = {
      {DType::kF32, {1, 1, 1, 1}},     {DType::kF32, {2, 7, 17, 5}},      {DType::kF32, {1, 1, 300, 256}},
      {DType::kF32, {1, 5, 33, 513}},  {DType::kF32, {1, 2, 100, 300}},   {DType::kF32, {1, 200, 40, 300}},
      {DType::kF32, {3, 4, 8, 0}},     {DType::kF32, {2, 210, 70, 30}},   {DType::kBF16, {1, 13, 50, 270}},
      {DType::kF16, {1, 3, 70, 600}},  {DType::kF16, {2, 6, 16, 64}},     {DType::kF64, {1, 19, 23, 260}},
      {DType::kI32, {1, 9, 20, 30}},   {DType::kI8, {1, 8, 33, 300}},     {DType::kI8, {2, 3, 70, 513}},
      {DType::kBF16, {2, 3, 70, 515}}, {DType::kBF16, {1, 200, 70, 300}}, {DType::kBF16, {1, 100, 20, 1}},
  };
  for (const auto& [dtype, sizes] : cases)
    for (int turn = 0; turn < 4; ++turn) {
      const auto [batch, m, n, k] = sizes;
      const auto order = [&] { return static_cast<Order>(random_() % 3); };
      const auto gap = [&] {
        return static_cast<int64_t>(random_() % 3);
      };  // pairs are words of memory or not
      const Order left_order = order(), right_order = order(), out_order = order();
      SCOPED_TRACE(concat(tile::name_of(dtype), " ", batch, " ", m, " ", n, " ", k, ", orders ",
                          static_cast<int>(left_order), static_cast<int>(right_order),
                          static_cast<int>(out_order)));
      const DType sums = sum_type(dtype), result = dtype == DType::kI8 ? DType::kI32 : dtype;
      Matrices left(dtype, {batch, m, k}, left_order, gap()), right(dtype, {batch, k, n}, right_order, gap()),
          out(result, {batch, m, n}, out_order);
      for (Matrices* matrices : {&left, &right, &out}) matrices->fill(random_);
      Matrices wanted = out;
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j)
            wanted.elements.set<double>(wanted.at(b, i, j), sum_of(sums, left, right, b, i, j));
      run({left.view, right.view, out.view});
      ASSERT_TRUE(out.elements == wanted.elements);
      if (turn > 1) continue;  // packed, the same bits; kernels take long to compile
      View packed = packed_right(right.view, nullptr);
      std::vector<std::byte> memory(static_cast<size_t>(packed.span()), std::byte{0xff});
      packed.data = memory.data();
      const Launch pack = pack_right(right.view, packed);
      EXPECT_EQ(pack.blocks(), pack.code().blocks(pack.arguments()));
      pack.run(1);
      out.fill(random_);
      GemmCall call = {left.view, right.view, out.view};
      call.packed = packed;
      run(call);
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j)
            ASSERT_EQ(out.elements.get<double>(out.at(b, i, j)),
                      wanted.elements.get<double>(wanted.at(b, i, j)));
    }
}

TEST_F(Gemm, MachineCodeDoesWhatTheInterpreterDoes) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64})
    for (const std::array<int64_t, 3> sizes : {std::array<int64_t, 3>{7, 20, 9}, {3, 40, 260}, {200, 5, 3}}) {
      Matrices left(dtype, {1, sizes[0], sizes[2]}, Order::kColumns),
          right(dtype, {1, sizes[2], sizes[1]}, Order::kColumns),
          out(dtype, {1, sizes[0], sizes[1]}, Order::kRows);
      left.fill(random_);
      right.fill(random_);
      run({left.view, right.view, out.view});
      const Elements code = out.elements;
      out.fill(random_);
      run({left.view, right.view, out.view}, true);
      for (int64_t i = 0; i < sizes[0]; ++i)
        for (int64_t j = 0; j < sizes[1]; ++j)
          ASSERT_EQ(code.get<double>(out.at(0, i, j)), out.elements.get<double>(out.at(0, i, j)));
    }
}

TEST_F(Gemm, ARowDoesNotDependOnTheOthers) {
  SCOPED_TRACE("seed " + std::to_string(seed_));
  const int64_t n = 70, k = 600, all = 400;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Matrices left(dtype, {1, all, k}, Order::kRows), right(dtype, {1, k, n}, Order::kColumns),
        whole(dtype, {1, all, n}, Order::kRows);
    left.fill(random_);
    right.fill(random_);
    run({left.view, right.view, whole.view});
    for (const int64_t m : {1, 2, 4, 5, 6, 7, 8, 9, 64, 193}) {
      const int64_t first = static_cast<int64_t>(random_() % static_cast<uint64_t>(all - m));
      Matrices part(dtype, {1, m, n}, Order::kRows);
      View rows = left.view;
      rows.sizes[1] = m;
      rows.data = static_cast<char*>(rows.data) + left.at(0, first, 0) * tile::size_of(dtype);
      run({rows, right.view, part.view});
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          ASSERT_EQ(part.elements.get<double>(part.at(0, i, j)),
                    whole.elements.get<double>(whole.at(0, first + i, j)))
              << m << " rows from " << first << ": " << i << ", " << j;
    }
  }
}

TEST_F(Gemm, FinishesSumsInTheirType) {
  static const Formula scaled =
      formula<4>([](auto sum, auto c, auto beta, auto alpha) { return beta * c + alpha * sum; });
  for (const int64_t k : {9, 300}) {
    Matrices left(DType::kBF16, {1, 9, k}, Order::kRows), right(DType::kBF16, {1, k, 20}, Order::kRows),
        out(DType::kBF16, {1, 9, 20}, Order::kRows), row(DType::kBF16, {1, 1, 20}, Order::kRows);
    for (Matrices* matrices : {&left, &right, &row}) matrices->fill(random_);
    GemmCall call = {left.view, right.view, out.view, &scaled, {row.view}, {0.5, -2}};
    call.operands[0].sizes = {1, 9, 20};
    call.operands[0].strides[1] = 0;
    run(call);
    for (int64_t i = 0; i < 9; ++i)
      for (int64_t j = 0; j < 20; ++j) {
        const auto sum = static_cast<float>(sum_of(DType::kF32, left, right, 0, i, j)),
                   c = row.elements.get<float>(row.at(0, 0, j));
        Elements wanted(DType::kBF16, 1);
        wanted.set<double>(0, 0.5f * c + -2.0f * sum);
        ASSERT_EQ(out.elements.get<double>(out.at(0, i, j)), wanted.get<double>(0));
      }
  }
}

TEST_F(Gemm, LaunchesKnowWhatTheyWrite) {
  Matrices left(DType::kF32, {1, 300, 40}, Order::kRows), right(DType::kF32, {1, 40, 100}, Order::kRows),
      out(DType::kF32, {1, 300, 100}, Order::kRows);
  std::vector<std::byte> panels;
  const std::vector<Launch> launches = prepare({left.view, right.view, out.view}, [&](int64_t bytes) {
    panels.resize(static_cast<size_t>(bytes));
    return panels.data();
  });
  std::vector<const void*> written;
  for (const Launch& launch : launches)
    for (const size_t word : launch.written())
      written.push_back(reinterpret_cast<const void*>(launch.arguments().words()[word]));
  EXPECT_EQ(written, (std::vector<const void*>{panels.data(), out.view.data}));
}

TEST_F(Gemm, TakesAPanelWhereItLies) {
  const int64_t m = 300, k = 40, n = jit::product_columns(DType::kF32, jit::kProductRows);
  Matrices left(DType::kF32, {1, m, k}, Order::kRows), right(DType::kF32, {1, k, n}, Order::kRows, 0),
      out(DType::kF32, {1, m, n}, Order::kRows);
  left.fill(random_);
  right.fill(random_);
  const auto no_memory = [](int64_t) -> void* { throw std::logic_error("the matrix is packed"); };
  for (const Launch& launch : prepare({left.view, right.view, out.view}, no_memory)) launch.run(1);
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      ASSERT_EQ(out.elements.get<double>(out.at(0, i, j)), sum_of(DType::kF32, left, right, 0, i, j));
}

TEST_F(Gemm, SaysWhatDoesNotFit) {
  Matrices left(DType::kF32, {1, 2, 3}, Order::kRows), right(DType::kF32, {1, 4, 5}, Order::kRows),
      out(DType::kF32, {1, 2, 5}, Order::kRows);
  try {
    run({left.view, right.view, out.view});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("f32[1, 2, 3] times f32[1, 4, 5] to f32[1, 2, 5]"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(sum_type(DType::kBool), Error);
}

}  // namespace
}  // namespace anynpu::ops
