// Products of acl_cblas.h: of small integers, which every type has, in the places that strides and transposes
// say.

#include <algorithm>
#include <limits>
#include <random>

#include "acl/ops/acl_cblas.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

constexpr auto kHigh = ACL_COMPUTE_HIGH_PRECISION;

class Cblas : public AclnnTest {
 protected:
  /// rows x cols from adjacent memory; with `turned` its transpose lies there, with `more` elements a row.
  struct Matrix {
    Matrix(DType dtype, int rows, int cols, bool turned, int more, std::mt19937_64& random)
        : rows(rows),
          cols(cols),
          turned(turned),
          stride((turned ? rows : cols) + more),
          tensor(dtype, {turned ? cols : rows, stride}) {
      std::vector<double> values(tensor.count());
      for (double& value : values) value = std::uniform_int_distribution<int>(-3, 3)(random);
      tensor.set(values);
    }
    aclTransType transpose() const { return turned ? ACL_TRANS_T : ACL_TRANS_N; }
    size_t place(int row, int col) const {
      return static_cast<size_t>(turned ? col * stride + row : row * stride + col);
    }
    const int rows, cols;
    const bool turned;
    const int stride;
    TestTensor tensor;
  };

  static std::vector<double> sums(const Matrix& a, const Matrix& b, const Matrix& c, double alpha,
                                  double beta) {
    const auto of_a = a.tensor.values(), of_b = b.tensor.values();
    std::vector<double> result = c.tensor.values();
    for (int i = 0; i < c.rows; ++i)
      for (int j = 0; j < c.cols; ++j) {
        double sum = 0;
        for (int k = 0; k < a.cols; ++k) sum += of_a[a.place(i, k)] * of_b[b.place(k, j)];
        double& element = result[c.place(i, j)];
        element = alpha * sum + beta * element;
      }
    return result;
  }

  std::mt19937_64 random_{1};
};

TEST_F(Cblas, MultipliesMatricesOfEveryTypeAsTheyLie) {
  struct Types {
    DType operands, result;
  };
  const Types types[] = {{DType::kF32, DType::kF32},  {DType::kF16, DType::kF16}, {DType::kF16, DType::kF32},
                         {DType::kBF16, DType::kF32}, {DType::kF64, DType::kF64}, {DType::kI8, DType::kI32}};
  for (const Types& type : types)
    for (const int turned : {0, 3, 5, 6}) {
      const Matrix a(type.operands, 5, 7, (turned & 1) != 0, 2, random_),
          b(type.operands, 7, 9, (turned & 2) != 0, 0, random_),
          c(type.result, 5, 9, (turned & 4) != 0, 3, random_);
      const auto expected = sums(a, b, c, 2, -1);
      const TestTensor alpha(type.result, {}, {2}), beta(type.result, {}, {-1});
      succeed(aclblasGemmEx(a.transpose(), b.transpose(), c.transpose(), 5, 9, 7, alpha.memory(),
                            a.tensor.memory(), a.stride, published_type(type.operands), b.tensor.memory(), -1,
                            published_type(type.operands), beta.memory(), c.tensor.memory(), c.stride,
                            published_type(type.result), kHigh, nullptr));
      succeed(aclrtSynchronizeStream(nullptr));
      expect_values(c.tensor, expected);
    }
}

TEST_F(Cblas, TakesFactorsOfTheHostAndTheDevice) {
  const float two = 2, three = 3, zero = 0;
  const TestTensor two_there(DType::kF32, {}, {2}), three_there(DType::kF32, {}, {3}),
      zero_there(DType::kF32, {}, {0});
  const void* const twos[] = {&two, two_there.memory()};
  const void* const threes[] = {&three, three_there.memory()};
  const auto run = [&](const Matrix& a, const Matrix& b, const Matrix& c, const void* alpha,
                       const void* beta) {
    succeed(aclblasGemmEx(ACL_TRANS_N, ACL_TRANS_N, ACL_TRANS_N, a.rows, b.cols, a.cols, alpha,
                          a.tensor.memory(), -1, ACL_FLOAT, b.tensor.memory(), -1, ACL_FLOAT, beta,
                          c.tensor.memory(), -1, ACL_FLOAT, kHigh, nullptr));
    succeed(aclrtSynchronizeStream(nullptr));
  };
  const Matrix a(DType::kF32, 300, 4, false, 0, random_), b(DType::kF32, 4, 3, false, 0, random_);
  for (const void* alpha : twos)
    for (const void* beta : threes) {
      const Matrix c(DType::kF32, 300, 3, false, 0, random_);
      const auto expected = sums(a, b, c, 2, 3);
      run(a, b, c, alpha, beta);
      expect_values(c.tensor, expected);
    }
  for (const void* beta : {static_cast<const void*>(&zero), static_cast<const void*>(zero_there.memory())})
    for (const void* alpha : twos) {
      Matrix c(DType::kF32, 300, 3, false, 0, random_);
      const auto expected = sums(a, b, c, 2, 0);
      const std::vector<double> nans(c.tensor.count(), std::numeric_limits<double>::quiet_NaN());
      c.tensor.set(nans);
      run(a, b, c, alpha, beta);
      expect_values(c.tensor, expected);
    }
}

TEST_F(Cblas, HasNamesForHalvesAndBytes) {
  const aclFloat16 one = aclFloatToFloat16(1), two = aclFloatToFloat16(2);
  const TestTensor a(DType::kF16, {2, 3}, {1, 2, 3, 4, 5, 6}), b(DType::kF16, {3, 1}, {1, 0, 2}),
      c(DType::kF16, {2, 1}, {10, 20});
  const auto halves = [](const TestTensor& tensor) { return static_cast<aclFloat16*>(tensor.memory()); };
  succeed(aclblasHgemm(ACL_TRANS_N, ACL_TRANS_N, ACL_TRANS_N, 2, 1, 3, &two, halves(a), -1, halves(b), -1,
                       &one, halves(c), -1, kHigh, nullptr));
  succeed(aclrtSynchronizeStream(nullptr));
  expect_values(c, {24, 52});
  const TestTensor rows(DType::kF16, {3}, {1, 0, 2}), out(DType::kF16, {2}), turned(DType::kF16, {3});
  succeed(aclblasHgemv(ACL_TRANS_N, 2, 3, &two, halves(a), -1, halves(rows), -1, &one, halves(out), -1, kHigh,
                       nullptr));
  succeed(aclblasHgemv(ACL_TRANS_T, 2, 3, &one, halves(a), -1, halves(c), -1, &one, halves(turned), -1, kHigh,
                       nullptr));
  succeed(aclrtSynchronizeStream(nullptr));
  expect_values(out, {14, 32});
  expect_values(turned, {232, 308, 384});

  const int32_t five = 5, none = 0;
  const TestTensor bytes(DType::kI8, {2, 3}, {127, -128, 3, 4, 5, 6}),
      weights(DType::kI8, {3, 1}, {127, 1, 2}), sums(DType::kI32, {2, 1});
  const auto of = [](const TestTensor& tensor) { return static_cast<int8_t*>(tensor.memory()); };
  const auto of_sums = static_cast<int32_t*>(sums.memory());
  succeed(aclblasS8gemm(ACL_TRANS_N, ACL_TRANS_N, ACL_TRANS_N, 2, 1, 3, &five, of(bytes), -1, of(weights), -1,
                        &none, of_sums, -1, kHigh, nullptr));
  succeed(aclrtSynchronizeStream(nullptr));
  expect_values(sums, {5 * 16007, 5 * 525});
  succeed(aclblasS8gemv(ACL_TRANS_N, 2, 3, &five, of(bytes), -1, of(weights), 1, &five, of_sums, 1, kHigh,
                        nullptr));
  succeed(aclrtSynchronizeStream(nullptr));
  expect_values(sums, {30 * 16007, 30 * 525});
}

TEST_F(Cblas, StepsOverElementsOfVectors) {
  const float one = 1;
  const TestTensor a(DType::kF32, {2, 3}, {1, 2, 3, 4, 5, 6}), x(DType::kF32, {5}, {1, 9, 0, 9, 2}),
      y(DType::kF32, {4}, {1, 7, 2, 7});
  succeed(aclblasGemvEx(ACL_TRANS_N, 2, 3, &one, a.memory(), 3, ACL_FLOAT, x.memory(), 2, ACL_FLOAT, &one,
                        y.memory(), 2, ACL_FLOAT, ACL_COMPUTE_LOW_PRECISION, nullptr));
  succeed(aclrtSynchronizeStream(nullptr));
  expect_values(y, {8, 7, 18, 7});
}

TEST_F(Cblas, SaysWhatItDoesNotTake) {
  const float one = 1;
  const TestTensor a(DType::kF32, {4, 4}), b(DType::kF32, {4, 4}), c(DType::kF32, {4, 4});
  std::vector<float> host(16);
  struct Given {
    aclTransType transpose = ACL_TRANS_N;
    int m = 4, lda = -1;
    aclDataType of_b = ACL_FLOAT, of_c = ACL_FLOAT;
    const void *alpha, *a;
    void* c;
    aclComputeType type = kHigh;
  };
  const Given good = {.alpha = &one, .a = a.memory(), .c = c.memory()};
  const auto refuse = [&](const Given& given, aclError wanted, const std::string& text) {
    EXPECT_EQ(aclblasGemmEx(given.transpose, ACL_TRANS_N, ACL_TRANS_N, given.m, 4, 4, given.alpha, given.a,
                            given.lda, ACL_FLOAT, b.memory(), -1, given.of_b, &one, given.c, -1, given.of_c,
                            given.type, nullptr),
              wanted);
    EXPECT_NE(std::string(aclGetRecentErrMsg()).find(text), std::string::npos) << text;
  };
  const auto with = [&](auto change) {
    Given given = good;
    change(given);
    return given;
  };
  constexpr auto kInvalid = ACL_ERROR_INVALID_PARAM;
  refuse(with([](Given& g) { g.transpose = ACL_TRANS_NZ; }), ACL_ERROR_FEATURE_UNSUPPORTED,
         "transA is 2, a matrix in blocks");
  refuse(with([](Given& g) { g.transpose = static_cast<aclTransType>(4); }), kInvalid, "transA is 4");
  refuse(with([](Given& g) { g.m = -1; }), kInvalid, "m is -1; 0 or more is accepted");
  refuse(with([](Given& g) { g.lda = 3; }), kInvalid, "lda is 3; -1, and 4 or more, are accepted");
  refuse(with([](Given& g) { g.of_b = ACL_FLOAT16; }), kInvalid, "dataTypeB is f16, but dataTypeA is f32");
  refuse(with([](Given& g) { g.of_c = ACL_FLOAT16; }), kInvalid,
         "dataTypeC is f16; for products of f32, f32 is accepted");
  refuse(with([](Given& g) { g.of_c = ACL_UINT64; }), ACL_ERROR_FEATURE_UNSUPPORTED,
         "dataTypeC is ACL_UINT64");
  refuse(with([](Given& g) { g.alpha = nullptr; }), kInvalid, "alpha is null");
  refuse(with([](Given& g) { g.a = nullptr; }), kInvalid, "matrixA has elements, but no address");
  refuse(with([&](Given& g) { g.a = host.data(); }), kInvalid, "which is no device memory");
  refuse(with([&](Given& g) { g.c = b.memory(); }), kInvalid,
         "matrixC is written, and shares memory with matrixB");
  refuse(with([](Given& g) { g.type = static_cast<aclComputeType>(2); }), kInvalid, "type is 2");
  refuse(with([](Given& g) { g.m = 5; }), ACL_ERROR_RT_PARAM_INVALID, "matrixA");
}

}  // namespace
}  // namespace anynpu::aclnn
