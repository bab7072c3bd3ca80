#include "ops/elementwise.h"

#include <functional>
#include <limits>

#include "aclnnop/aclnn_add.h"
#include "aclnnop/aclnn_copy.h"
#include "aclnnop/aclnn_gelu.h"
#include "aclnnop/aclnn_gelu_backward.h"
#include "aclnnop/aclnn_gelu_backward_v2.h"
#include "aclnnop/aclnn_gelu_v2.h"
#include "aclnnop/aclnn_mul.h"
#include "aclnnop/aclnn_s_where.h"
#include "aclnnop/aclnn_silu.h"
#include "aclnnop/aclnn_silu_backward.h"
#include "aclnnop/aclnn_sub.h"
#include "ops/promotion.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnElementwise : public AclnnTest {};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

TEST_F(AclnnElementwise, AddsAllTypesAtAllStrides) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const Layout layouts[] = {{{12, 4, 1}}, {{1, 2, 6}}, {{40, 8, 2}, 3}, {{12, 1, 3}, 5}};
  for (int a = 0; a < tile::kDTypes; ++a) {
    for (int b = 0; b < tile::kDTypes; ++b) {
      const auto first = static_cast<DType>(a), second = static_cast<DType>(b);
      const DType common = ops::promoted(first, second);
      TestTensor self(first, {2, 3, 4}, layouts[random() % 4]), other(second, {3, 1});
      TestTensor out(common, {2, 3, 4}, layouts[random() % 4]);
      std::vector<double> x(24), y(3), expected(24);
      for (double& value : x) value = first == DType::kBool ? random() % 2 : random() % 40;
      for (double& value : y) value = second == DType::kBool ? random() % 2 : random() % 40;
      for (size_t i = 0; i < 24; ++i) expected[i] = x[i] + 2 * y[i / 4 % 3];
      self.set(x);
      other.set(y);
      const TestScalar alpha(int64_t{2});
      ASSERT_EQ(call(ANYNPU_PHASES(aclnnAdd), self, other, alpha, out), ACL_SUCCESS) << message();
      SCOPED_TRACE(concat(name_of(first), " and ", name_of(second), ", seed ", seed));
      if (common == DType::kBool) {  // alpha is true there
        for (size_t i = 0; i < 24; ++i) expected[i] = x[i] != 0 || y[i / 4 % 3] != 0;
      }
      expect_values(out, expected);
    }
  }
}

TEST_F(AclnnElementwise, NumbersAndPlaces) {
  TestTensor x(DType::kF32, {3}, {1, 2, -3}), y(DType::kF32, {3}, {10, 20, 30}), out(DType::kF32, {3});
  const TestScalar two(2.0), half(0.5);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAdds), x, two, half, out), ACL_SUCCESS) << message();
  expect_values(out, {2, 3, -2});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSub), x, y, half, out), ACL_SUCCESS) << message();
  expect_values(out, {-4, -8, -18});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSubs), x, two, half, out), ACL_SUCCESS) << message();
  expect_values(out, {0, 1, -4});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMul), x, y, out), ACL_SUCCESS) << message();
  expect_values(out, {10, 40, -90});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMuls), x, two, out), ACL_SUCCESS) << message();
  expect_values(out, {2, 4, -6});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceAdd), x, y, half), ACL_SUCCESS) << message();
  expect_values(x, {6, 12, 12});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceAdds), x, two, half), ACL_SUCCESS) << message();
  expect_values(x, {7, 13, 13});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceSub), x, y, two), ACL_SUCCESS) << message();
  expect_values(x, {-13, -27, -47});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceSubs), x, two, half), ACL_SUCCESS) << message();
  expect_values(x, {-14, -28, -48});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceMul), x, y), ACL_SUCCESS) << message();
  expect_values(x, {-140, -560, -1440});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceMuls), x, half), ACL_SUCCESS) << message();
  expect_values(x, {-70, -280, -720});
}

TEST_F(AclnnElementwise, NumbersDoNotWidenTensors) {
  TestTensor x(DType::kI8, {2}, {100, -100}), narrow(DType::kI8, {2}), wide(DType::kI64, {2}),
      real(DType::kF32, {2});
  const TestScalar number(int64_t{100}), fraction(0.5), one(int64_t{1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAdds), x, number, one, wide), ACL_SUCCESS) << message();
  expect_values(wide, {-56, 0});  // computed in i8, which wraps around
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMuls), x, fraction, real), ACL_SUCCESS) << message();
  expect_values(real, {50, -50});
  expect_failure(call(ANYNPU_PHASES(aclnnMuls), x, fraction, narrow), ACLNN_ERR_PARAM_INVALID,
                 "the result has type f32, which out of type i8 cannot take");
}

TEST_F(AclnnElementwise, ChoosesByAMaskOfAnyByte) {
  for (const DType mask : {DType::kBool, DType::kU8}) {
    TestTensor condition(mask, {3}, {1, 0, mask == DType::kU8 ? 7.0 : 1.0}),
        self(DType::kF16, {2, 1}, {1, 2}), other(DType::kF32, {}, {kNaN}), out(DType::kF32, {2, 3});
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnSWhere), condition, self, other, out), ACL_SUCCESS) << message();
    expect_values(out, {1, kNaN, 1, 2, kNaN, 2});
  }
  TestTensor condition(DType::kF32, {1}, {1}), x(DType::kF32, {1}, {1}), out(DType::kF32, {1});
  expect_failure(call(ANYNPU_PHASES(aclnnSWhere), condition, x, x, out), ACLNN_ERR_PARAM_INVALID,
                 "condition has type f32; bool and u8 are accepted");
}

double gelu(double x) { return x * 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }
double gelu_slope(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * density(x); }
double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double silu(double x) { return x / (1 + std::exp(-x)); }
/// The derivative, from two values.
double slope(double (*function)(double), double x) {
  return (function(x + 1e-5) - function(x - 1e-5)) / 2e-5;
}

TEST_F(AclnnElementwise, ActivationsAreTheirClosedForms) {
  const std::vector<double> x = {-4, -1.5, -0.25, 0, 0.5, 1, 3, kNaN};
  std::vector<double> grad(8, 2);
  const auto mapped = [&](const std::function<double(double)>& function) {
    std::vector<double> result;
    for (const double value : x) result.push_back(function(value));
    return result;
  };
  char tanh_name[] = "tanh", none_name[] = "none";
  for (const auto& [dtype, error] :
       {std::pair(DType::kF64, 1e-9), {DType::kF32, 1e-6}, {DType::kF16, 2e-3}, {DType::kBF16, 1e-2}}) {
    SCOPED_TRACE(name_of(dtype));
    TestTensor self(dtype, {2, 4}, x), gradient(dtype, {2, 4}, grad), out(dtype, {2, 4}, Layout{{1, 2}});
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnGelu), self, out), ACL_SUCCESS) << message();
    expect_values(out, mapped(gelu), error);
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnGeluV2), self, int64_t{0}, out), ACL_SUCCESS) << message();
    expect_values(out, mapped(gelu), error);
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnGeluV2), self, int64_t{1}, out), ACL_SUCCESS) << message();
    expect_values(out, mapped(gelu_tanh), error);
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnGeluBackward), gradient, self, out), ACL_SUCCESS) << message();
    expect_values(out, mapped([](double v) { return 2 * gelu_slope(v); }), error);
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnGeluBackwardV2), gradient, self, &none_name[0], out), ACL_SUCCESS)
        << message();
    expect_values(out, mapped([](double v) { return 2 * gelu_slope(v); }), error);
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnGeluBackwardV2), gradient, self, &tanh_name[0], out), ACL_SUCCESS)
        << message();
    expect_values(out, mapped([](double v) { return 2 * slope(gelu_tanh, v); }), error);
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnSilu), self, out), ACL_SUCCESS) << message();
    expect_values(out, mapped(silu), error);
    ASSERT_EQ(call(ANYNPU_PHASES(aclnnSiluBackward), gradient, self, out), ACL_SUCCESS) << message();
    expect_values(out, mapped([](double v) { return 2 * slope(silu, v); }), error);
  }
}

TEST_F(AclnnElementwise, CopiesConvert) {
  TestTensor to(DType::kI32, {2, 2}, Layout{{1, 2}, 1}), from(DType::kF32, {2}, {1.75, -2.5});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceCopy), to, from), ACL_SUCCESS) << message();
  expect_values(to, {1, -2, 1, -2});
  TestTensor bits(DType::kBool, {3}), numbers(DType::kF16, {3}, {0, 0.5, kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceCopy), bits, numbers), ACL_SUCCESS) << message();
  expect_values(bits, {0, 1, 1});
  TestTensor wide(DType::kF32, {3});
  expect_failure(call(ANYNPU_PHASES(aclnnInplaceCopy), wide, from), ACLNN_ERR_PARAM_INVALID,
                 "src has shape [2], which selfRef of shape [3] cannot take");
}

TEST_F(AclnnElementwise, EmptyTensorsNeedNoMemory) {
  TestTensor x(DType::kF32, {0, 3}), y(DType::kF32, {1, 3}, {1, 2, 3}), out(DType::kF32, {0, 3});
  const TestScalar one(1.0);
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnAdd), x, y, one, out), ACL_SUCCESS) << message();
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnGelu), x, out), ACL_SUCCESS) << message();
}

TEST_F(AclnnElementwise, InfinitiesAndNaNsGoThrough) {
  TestTensor x(DType::kF16, {4}, {kInfinity, -kInfinity, kNaN, 65504}), out(DType::kF16, {4});
  const TestScalar one(1.0);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAdd), x, x, one, out), ACL_SUCCESS) << message();
  expect_values(out, {kInfinity, -kInfinity, kNaN, kInfinity});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSub), x, x, one, out), ACL_SUCCESS) << message();
  expect_values(out, {kNaN, kNaN, kNaN, 0});
}

TEST_F(AclnnElementwise, LargeCallsRunInParallel) {
  constexpr int64_t kRows = 700, kCols = 901;
  TestTensor x(DType::kF32, {kRows, kCols}), y(DType::kF32, {kCols}),
      out(DType::kF32, {kRows, kCols}, Layout{{1, kRows}});
  std::vector<double> of_x(kRows * kCols), of_y(kCols), expected(kRows * kCols);
  for (size_t i = 0; i < of_x.size(); ++i) of_x[i] = static_cast<double>(i % 1000);
  for (size_t i = 0; i < of_y.size(); ++i) of_y[i] = static_cast<double>(i);
  for (size_t i = 0; i < of_x.size(); ++i) expected[i] = of_x[i] - of_y[i % kCols];
  x.set(of_x);
  y.set(of_y);
  const TestScalar one(int64_t{1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSub), x, y, one, out), ACL_SUCCESS) << message();
  EXPECT_EQ(out.values(), expected);
}

TEST_F(AclnnElementwise, WrongArgumentsAreNamed) {
  TestTensor x(DType::kF32, {2, 3}), row(DType::kF32, {4}), small(DType::kF32, {3}), out(DType::kF32, {2, 3}),
      folded(DType::kF32, {2, 3}, Layout{{0, 1}}), integers(DType::kI32, {2, 3}), truth(DType::kBool, {2, 3});
  const TestScalar one(1.0), large(int64_t{1} << 40);
  const float pair[] = {1, 2};
  const int64_t sizes[] = {2, 3};
  const TestScalar complex(std::make_pair(1.0f, 2.0f), ACL_COMPLEX64);
  aclTensor* blocked =
      aclCreateTensor(sizes, 2, ACL_FLOAT, nullptr, 0, ACL_FORMAT_FRACTAL_NZ, nullptr, 0, x.memory());
  aclTensor* row_of_x =
      aclCreateTensor(sizes, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, x.memory());
  aclTensor* shifted =
      aclCreateTensor(sizes, 1, ACL_FLOAT, nullptr, 1, ACL_FORMAT_ND, nullptr, 0, x.memory());
  aclTensor* on_host =
      aclCreateTensor(sizes, 0, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, const_cast<float*>(pair));
  aclTensor* outside =
      aclCreateTensor(sizes, 2, ACL_FLOAT, nullptr, 200000, ACL_FORMAT_ND, nullptr, 0, x.memory());
  aclTensor* eights =
      aclCreateTensor(sizes, 2, ACL_FLOAT8_E5M2, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, x.memory());
  const auto add = [&](const aclTensor* a, const aclTensor* b, const aclScalar* alpha, aclTensor* result) {
    return call(ANYNPU_PHASES(aclnnAdd), a, b, alpha, result);
  };
  constexpr aclnnStatus kNull = ACLNN_ERR_PARAM_NULLPTR, kInvalid = ACLNN_ERR_PARAM_INVALID;
  expect_failure(add(nullptr, x, one, out), kNull, "aclnnAddGetWorkspaceSize failed");
  expect_failure(add(x, x, nullptr, out), kNull, "alpha is null; it must be a scalar");
  expect_failure(add(x, x, one, nullptr), kNull, "out is null; it must be a tensor");
  expect_failure(add(x, row, one, out), kInvalid, "other has shape [4], which is not broadcast");
  expect_failure(add(x, x, one, small), kInvalid, "out has shape [3]; [2, 3] is accepted");
  expect_failure(add(x, x, one, folded), kInvalid,
                 "out is written, but indices share elements: shape [2, 3], strides [0, 1]");
  expect_failure(add(x, x, one, integers), kInvalid,
                 "the result has type f32, which out of type i32 cannot take");
  expect_failure(add(integers, integers, one, integers), kInvalid,
                 "alpha is a float (1), but the operands have common type i32");
  expect_failure(add(integers, integers, large, integers), kInvalid,
                 "alpha is 1099511627776, which i32 does not have");
  expect_failure(add(x, x, complex, out), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "not supported: alpha is ACL_COMPLEX64");
  expect_failure(add(eights, x, one, out), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "not supported: self is ACL_FLOAT8_E5M2");
  expect_failure(add(x, blocked, one, out), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "not supported: other has format 29");
  expect_failure(add(x, on_host, one, out), kInvalid, "other lies at");
  expect_failure(add(x, outside, one, out), kInvalid, "other");
  expect_failure(call(ANYNPU_PHASES(aclnnSub), truth, truth, one, truth), kInvalid,
                 "common type bool; accepted are u8, i8, i16, i32, i64, f16, bf16, f32, f64");
  expect_failure(call(ANYNPU_PHASES(aclnnGelu), integers, out), kInvalid, "accepted are f16, bf16, f32, f64");
  expect_failure(call(ANYNPU_PHASES(aclnnGeluV2), x, int64_t{2}, out), kInvalid,
                 "approximate is 2; accepted are none, tanh, by number");
  char wrong[] = "erf";
  expect_failure(call(ANYNPU_PHASES(aclnnGeluBackwardV2), x, x, &wrong[0], out), kInvalid,
                 "approximate is erf; accepted are none, tanh");
  expect_failure(call(ANYNPU_PHASES(aclnnGeluBackwardV2), x, x, static_cast<char*>(nullptr), out), kNull,
                 "approximate is null");
  uint64_t size = 7;
  aclOpExecutor* executor = nullptr;
  expect_failure(aclnnGeluGetWorkspaceSize(x, out, nullptr, &executor), kNull, "workspaceSize is null");
  expect_failure(aclnnGeluGetWorkspaceSize(x, out, &size, nullptr), kNull, "executor is null");
  expect_failure(aclnnGeluGetWorkspaceSize(x, small, &size, &executor), kInvalid, "out has shape [3]");
  EXPECT_EQ(size, 7u) << "nothing is written on failure";
  EXPECT_EQ(executor, nullptr);
  expect_failure(add(row_of_x, row_of_x, one, shifted), kInvalid,
                 "out is written, and shares memory with self, but not index by index");
  for (aclTensor* tensor : {row_of_x, shifted, blocked, on_host, outside, eights})
    EXPECT_EQ(aclDestroyTensor(tensor), ACL_SUCCESS);
}

}  // namespace
}  // namespace anynpu::aclnn
