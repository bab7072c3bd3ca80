// Products of matrices, against sums over k in the test: of small integers, which every type has.

#include <limits>
#include <random>

#include "aclnnop/aclnn_addbmm.h"
#include "aclnnop/aclnn_addmm.h"
#include "aclnnop/aclnn_addmv.h"
#include "aclnnop/aclnn_baddbmm.h"
#include "aclnnop/aclnn_batch_matmul.h"
#include "aclnnop/aclnn_dot.h"
#include "aclnnop/aclnn_matmul.h"
#include "aclnnop/aclnn_mm.h"
#include "aclnnop/aclnn_mv.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class AclnnProducts : public AclnnTest {
 protected:
  std::vector<double> small_integers(const Sizes& sizes) {
    std::vector<double> values;
    const int64_t count = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    for (int64_t i = 0; i < count; ++i) values.push_back(std::uniform_int_distribution<int>(-4, 4)(random_));
    return values;
  }

  /// With its last two dimensions side by side in either order.
  std::unique_ptr<TestTensor> tensor(DType dtype, const Sizes& sizes, bool turned) {
    Layout layout = {ops::contiguous(dtype, nullptr, sizes).strides, 3};
    if (turned && sizes.size() > 1) {
      const size_t last = sizes.size() - 1;
      layout.strides[last] = std::max<int64_t>(sizes[last - 1], 1);
      layout.strides[last - 1] = 1;
    }
    auto made = std::make_unique<TestTensor>(dtype, sizes, layout);
    made->set(small_integers(sizes));
    return made;
  }

  std::mt19937_64 random_{1};
};

/// torch.matmul of operands that have at least two dimensions, and as many.
std::vector<double> product(const TestTensor& left, const TestTensor& right, const Sizes& sizes) {
  const auto a = left.values(), b = right.values();
  const Sizes &of_a = left.sizes(), &of_b = right.sizes();
  const size_t dims = sizes.size();
  const int64_t m = sizes[dims - 2], n = sizes[dims - 1], k = of_a[dims - 1];
  int64_t batches = 1;
  for (size_t d = 0; d + 2 < dims; ++d) batches *= sizes[d];
  std::vector<double> result;
  for (int64_t batch = 0; batch < batches; ++batch) {
    int64_t in_a = 0, in_b = 0, rest = batch, step_a = 1, step_b = 1;
    for (size_t d = dims - 2; d-- > 0; rest /= sizes[d]) {
      const int64_t at = rest % sizes[d];
      in_a += (of_a[d] == 1 ? 0 : at) * step_a;
      in_b += (of_b[d] == 1 ? 0 : at) * step_b;
      step_a *= of_a[d];
      step_b *= of_b[d];
    }
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p)
          sum +=
              a[static_cast<size_t>((in_a * m + i) * k + p)] * b[static_cast<size_t>((in_b * k + p) * n + j)];
        result.push_back(sum);
      }
  }
  return result;
}

TEST_F(AclnnProducts, MultiplyMatricesOfEveryTypeAndLayout) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI32})
    for (const int layouts : {0, 1, 2, 3, 4, 5, 6, 7}) {
      const auto a = tensor(dtype, {7, 5}, (layouts & 1) != 0),
                 b = tensor(dtype, {5, 19}, (layouts & 2) != 0),
                 out = tensor(dtype, {7, 19}, (layouts & 4) != 0);
      succeed(call(ANYNPU_PHASES(aclnnMm), *a, *b, *out, int8_t{0}));
      expect_values(*out, product(*a, *b, {7, 19}));
    }
}

TEST_F(AclnnProducts, BroadcastBatches) {
  struct Case {
    Sizes left, right, out;
  };
  const Case cases[] = {
      {{3, 2, 4}, {3, 4, 5}, {3, 2, 5}},          {{3, 2, 4}, {1, 4, 5}, {3, 2, 5}},
      {{1, 2, 4}, {3, 4, 5}, {3, 2, 5}},          {{2, 1, 3, 4}, {1, 5, 4, 2}, {2, 5, 3, 2}},
      {{2, 5, 3, 4}, {2, 1, 4, 2}, {2, 5, 3, 2}}, {{2, 5, 3, 4}, {1, 1, 4, 2}, {2, 5, 3, 2}},
      {{2, 5, 3, 4}, {1, 5, 4, 2}, {2, 5, 3, 2}}, {{0, 2, 4}, {1, 4, 5}, {0, 2, 5}},
      {{3, 2, 0}, {3, 0, 5}, {3, 2, 5}},
  };
  for (const Case& each : cases)
    for (const bool turned : {false, true}) {
      const auto a = tensor(DType::kF32, each.left, turned), b = tensor(DType::kF32, each.right, !turned);
      const TestTensor out(DType::kF32, each.out);
      succeed(call(ANYNPU_PHASES(aclnnMatmul), *a, *b, out, int8_t{1}));
      expect_values(out, product(*a, *b, each.out));
      if (each.out.size() != 3) continue;
      const TestTensor batches(DType::kF32, each.out);
      succeed(call(ANYNPU_PHASES(aclnnBatchMatMul), *a, *b, batches, int8_t{1}));
      expect_values(batches, out.values());
    }
}

TEST_F(AclnnProducts, TakeVectorsAsRowsAndColumns) {
  const TestTensor row(DType::kF32, {3}, {1, 2, 3}), column(DType::kF32, {3}, {10, 0, -1}),
      matrix(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6}), wide(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6}),
      batches(DType::kF32, {2, 1, 3}, {1, 0, 0, 0, 1, 1});
  const TestTensor number(DType::kF32, {}), two(DType::kF32, {2}), of_batches(DType::kF32, {2, 1});
  succeed(call(ANYNPU_PHASES(aclnnMatmul), row, column, number, int8_t{0}));
  expect_values(number, {7});
  succeed(call(ANYNPU_PHASES(aclnnDot), column, row, number));
  expect_values(number, {7});
  succeed(call(ANYNPU_PHASES(aclnnMatmul), row, matrix, two, int8_t{0}));
  expect_values(two, {22, 28});
  succeed(call(ANYNPU_PHASES(aclnnMv), wide, column, two, int8_t{0}));
  expect_values(two, {7, 34});
  succeed(call(ANYNPU_PHASES(aclnnMatmul), batches, column, of_batches, int8_t{0}));
  expect_values(of_batches, {10, -1});
}

TEST_F(AclnnProducts, AddMultiples) {
  const TestTensor a(DType::kF16, {2, 3}, {1, 2, 3, 4, 5, 6}), b(DType::kF16, {3, 2}, {1, 0, 0, 1, 1, 1});
  const TestTensor bias(DType::kF16, {2}, {10, 20}), vector(DType::kF16, {3}, {1, 1, 2});
  const TestTensor nans(DType::kF16, {2, 2}, {kNan, kNan, kNan, kNan});
  const TestTensor out(DType::kF16, {2, 2}, {100, 200, 300, 400}), two(DType::kF16, {2});
  const TestScalar zero(0.0), one(1.0), half(0.5), three(int64_t{3});
  succeed(call(ANYNPU_PHASES(aclnnAddmm), bias, a, b, one, one, out, int8_t{0}));
  expect_values(out, {14, 25, 20, 31});
  succeed(call(ANYNPU_PHASES(aclnnInplaceAddmm), out, a, b, half, three, int8_t{0}));
  expect_values(out, {19, 27.5, 40, 48.5});
  succeed(call(ANYNPU_PHASES(aclnnAddmm), nans, a, b, zero, half, out, int8_t{0}));
  expect_values(out, {2, 2.5, 5, 5.5});
  succeed(call(ANYNPU_PHASES(aclnnAddmv), bias, a, vector, half, three, two, int8_t{0}));  // alpha, then beta
  expect_values(two, {34.5, 70.5});
}

TEST_F(AclnnProducts, AddMultiplesToBatchesAndTheirSums) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32})
    for (const int64_t batches : {0, 1, 2, 5}) {
      const auto a = tensor(dtype, {batches, 3, 4}, false), b = tensor(dtype, {batches, 4, 2}, true);
      const TestTensor added(dtype, {3, 1}, {1, 2, 3}), out(dtype, {batches, 3, 2}), sum(dtype, {3, 2});
      const TestScalar two(int64_t{2}), three(int64_t{3});
      succeed(call(ANYNPU_PHASES(aclnnBaddbmm), added, *a, *b, two, three, out, int8_t{0}));
      std::vector<double> expected = product(*a, *b, {batches, 3, 2}), sums = {2, 2, 4, 4, 6, 6};
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] *= 3;
        sums[i % 6] += expected[i];
        expected[i] += 2 * static_cast<double>(i / 2 % 3 + 1);
      }
      expect_values(out, expected, dtype == DType::kBF16 ? 0x1p-8 : 0);
      succeed(call(ANYNPU_PHASES(aclnnAddbmm), added, *a, *b, two, three, sum, int8_t{0}));
      expect_values(sum, sums, dtype == DType::kBF16 ? 0x1p-8 : 0);
    }
}

TEST_F(AclnnProducts, SayWhatTheyDoNotTake) {
  const TestTensor a(DType::kF32, {8, 48}), b(DType::kF32, {64, 32}), out(DType::kF32, {8, 32}),
      square(DType::kF32, {8, 8}), half(DType::kF16, {48, 32}), number(DType::kF32, {}),
      integers(DType::kI32, {2, 2}), batches(DType::kF32, {2, 8, 8}), others(DType::kF32, {3, 8, 8});
  const auto refuse = [&](aclnnStatus status, aclnnStatus wanted, const std::string& text) {
    EXPECT_EQ(status, wanted);
    EXPECT_NE(std::string(aclGetRecentErrMsg()).find(text), std::string::npos) << text;
  };
  constexpr auto kInvalid = ACLNN_ERR_PARAM_INVALID;
  refuse(
      call(ANYNPU_PHASES(aclnnMm), a, b, out, int8_t{0}), kInvalid,
      "mat2 has shape [64, 32], but self has shape [8, 48]; the last size of self, 48, must be that of mat2 "
      "along the last dimension but one, 64");
  refuse(call(ANYNPU_PHASES(aclnnMm), batches, b, out, int8_t{0}), kInvalid, "2 dimensions are accepted");
  refuse(call(ANYNPU_PHASES(aclnnMatmul), number, b, out, int8_t{0}), kInvalid,
         "self has shape []; one dimension or more is accepted");
  refuse(call(ANYNPU_PHASES(aclnnMatmul), batches, others, batches, int8_t{0}), kInvalid,
         "are not broadcast with those of self");
  refuse(call(ANYNPU_PHASES(aclnnMm), a, half, out, int8_t{0}), kInvalid,
         "mat2 has type f16; accepted are f32");
  refuse(call(ANYNPU_PHASES(aclnnMm), square, square, out, int8_t{0}), kInvalid, "[8, 8] is accepted");
  const TestTensor other(DType::kF32, {8, 8});
  refuse(call(ANYNPU_PHASES(aclnnMm), square, other, square, int8_t{0}), kInvalid,
         "out is written, and shares memory with self");
  refuse(call(ANYNPU_PHASES(aclnnMm), square, square, other, int8_t{4}), kInvalid, "0 to 3 are accepted");
  refuse(call(ANYNPU_PHASES(aclnnMm), square, square, other, int8_t{2}), ACL_ERROR_FEATURE_UNSUPPORTED,
         "cubeMathType is 2 (USE_FP16) for operands of f32");
  refuse(call(ANYNPU_PHASES(aclnnMm), square, square, other, int8_t{3}), ACL_ERROR_FEATURE_UNSUPPORTED,
         "cubeMathType is 3 (USE_HF32) for operands of f32");
  const TestScalar one(int64_t{1}), fraction(0.5);
  const TestTensor more(DType::kI32, {2, 2}), sums(DType::kI32, {2, 2}), wide(DType::kF32, {3, 8});
  refuse(call(ANYNPU_PHASES(aclnnAddmm), integers, integers, more, one, fraction, sums, int8_t{0}), kInvalid,
         "alpha is a float; the operands have type i32");
  refuse(call(ANYNPU_PHASES(aclnnAddmm), wide, square, square, one, one, other, int8_t{0}), kInvalid,
         "self has shape [3, 8], which is not broadcast to that of the product, [8, 8]");
  refuse(call(ANYNPU_PHASES(aclnnAddbmm), square, batches, others, one, one, other, int8_t{0}), kInvalid,
         "batches are not broadcast");
}

}  // namespace
}  // namespace anynpu::aclnn
