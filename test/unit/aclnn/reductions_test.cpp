#include <cmath>
#include <limits>

#include "aclnnop/aclnn_all.h"
#include "aclnnop/aclnn_amax.h"
#include "aclnnop/aclnn_amin.h"
#include "aclnnop/aclnn_any.h"
#include "aclnnop/aclnn_argmax.h"
#include "aclnnop/aclnn_argmin.h"
#include "aclnnop/aclnn_cumprod.h"
#include "aclnnop/aclnn_cumsum.h"
#include "aclnnop/aclnn_max.h"
#include "aclnnop/aclnn_max_dim.h"
#include "aclnnop/aclnn_mean.h"
#include "aclnnop/aclnn_min.h"
#include "aclnnop/aclnn_min_dim.h"
#include "aclnnop/aclnn_prod.h"
#include "aclnnop/aclnn_reduce_sum.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class AclnnReductions : public AclnnTest {
 protected:
  static std::shared_ptr<aclIntArray> dims(const Sizes& dims) {
    return {aclCreateIntArray(dims.data(), dims.size()),
            [](aclIntArray* array) { EXPECT_EQ(aclDestroyIntArray(array), ACL_SUCCESS); }};
  }
};

TEST_F(AclnnReductions, SumsAndMeansOverAnyDimensions) {
  const Layout layouts[] = {{{6, 3, 1}}, {{1, 2, 4}, 2}, {{20, 7, 2}, 3}};
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16})
    for (const Layout& layout : layouts) {
      TestTensor x(dtype, {2, 2, 3}, layout);
      x.set({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
      TestTensor all(dtype, {}), kept(dtype, {2, 1, 1}), outer(dtype, {2}), last(DType::kF32, {2, 2});
      const aclDataType type = published_type(dtype);
      ASSERT_EQ(call(ANYNPU_PHASES(aclnnReduceSum), x, dims({}).get(), false, type, all), ACL_SUCCESS)
          << message();
      expect_values(all, {66});
      ASSERT_EQ(call(ANYNPU_PHASES(aclnnReduceSum), x, dims({-1, 1}).get(), true, type, kept), ACL_SUCCESS)
          << message();
      expect_values(kept, {15, 51});
      ASSERT_EQ(call(ANYNPU_PHASES(aclnnReduceSum), x, dims({0, 2}).get(), false, type, outer), ACL_SUCCESS)
          << message();
      expect_values(outer, {24, 42});
      ASSERT_EQ(call(ANYNPU_PHASES(aclnnMean), x, dims({2}).get(), false, ACL_FLOAT, last), ACL_SUCCESS)
          << message();
      expect_values(last, {1, 4, 7, 10});
    }
}

TEST_F(AclnnReductions, LongSumsAreExactWhereIntegersAre) {
  constexpr int64_t kSize = 100001;
  TestTensor x(DType::kI32, {kSize}), sum(DType::kI64, {}), narrow(DType::kI8, {1});
  x.set(std::vector<double>(kSize, 30000));
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnReduceSum), x, dims({0}).get(), false, ACL_INT64, sum), ACL_SUCCESS)
      << message();
  expect_values(sum, {30000.0 * kSize});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnReduceSum), x, dims({0}).get(), true, ACL_INT8, narrow), ACL_SUCCESS)
      << message();
  expect_values(narrow, {static_cast<double>(static_cast<int8_t>(30000 * kSize))});
  TestTensor nothing(DType::kF32, {0, 2}), zeros(DType::kF32, {2}, {7, 7});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnReduceSum), nothing, dims({0}).get(), false, ACL_FLOAT, zeros),
            ACL_SUCCESS)
      << message();
  expect_values(zeros, {0, 0});
}

TEST_F(AclnnReductions, ExtremesAndTheirPositions) {
  TestTensor x(DType::kF32, {3, 4}, {1, 5, 5, 0, 2, kNaN, 3, kNaN, -1, -1, -2, -2});
  TestTensor values(DType::kF32, {3}), kept(DType::kF32, {3, 1}), column(DType::kF32, {4}),
      one(DType::kF32, {});
  TestTensor places(DType::kI64, {3}), narrow(DType::kI32, {3, 1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAmax), x, dims({1}).get(), true, kept), ACL_SUCCESS) << message();
  expect_values(kept, {5, kNaN, -1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAmin), x, dims({0}).get(), false, column), ACL_SUCCESS) << message();
  expect_values(column, {-1, kNaN, -2, kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMax), x, one), ACL_SUCCESS) << message();
  expect_values(one, {kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMin), column, one), ACL_SUCCESS) << message();
  expect_values(one, {kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnArgMax), x, int64_t{1}, false, places), ACL_SUCCESS) << message();
  expect_values(places, {1, 1, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnArgMin), x, int64_t{-1}, true, narrow), ACL_SUCCESS) << message();
  expect_values(narrow, {3, 1, 2});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMaxDim), x, int64_t{1}, false, values, places), ACL_SUCCESS) << message();
  expect_values(values, {5, kNaN, -1});
  expect_values(places, {1, 1, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMinDim), x, int64_t{1}, false, values, places), ACL_SUCCESS) << message();
  expect_values(values, {0, kNaN, -2});
  expect_values(places, {3, 1, 2});
}

TEST_F(AclnnReductions, PositionsInALongLineNeedWorkspace) {
  constexpr int64_t kSize = 90000;
  std::vector<double> numbers(kSize, 1);
  numbers[70001] = numbers[80001] = 2;
  TestTensor x(DType::kF32, {kSize}), place(DType::kI64, {});
  x.set(numbers);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  ASSERT_EQ(aclnnArgMaxGetWorkspaceSize(x, 0, false, place, &size, &executor), ACL_SUCCESS) << message();
  EXPECT_GT(size, 0U);
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), ACL_SUCCESS);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnArgMax), x, int64_t{0}, false, place), ACL_SUCCESS) << message();
  expect_values(place, {70001});
}

TEST_F(AclnnReductions, ProductsAndTruths) {
  TestTensor x(DType::kI32, {2, 3}, {1, 2, 3, 0, 5, 6});
  TestTensor product(DType::kF32, {}), rows(DType::kI64, {2}), truth(DType::kBool, {2}),
      one(DType::kU8, {1, 1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnProd), x, ACL_FLOAT, product), ACL_SUCCESS) << message();
  expect_values(product, {0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnProdDim), x, int64_t{1}, false, ACL_INT64, rows), ACL_SUCCESS)
      << message();
  expect_values(rows, {6, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAll), x, dims({1}).get(), false, truth), ACL_SUCCESS) << message();
  expect_values(truth, {1, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAny), x, dims({}).get(), true, one), ACL_SUCCESS) << message();
  expect_values(one, {1});
}

TEST_F(AclnnReductions, RunningSumsAndProducts) {
  TestTensor x(DType::kU8, {2, 3}, Layout{{1, 2}});
  x.set({200, 100, 3, 4, 5, 6});
  TestTensor out(DType::kI64, {2, 3}), floats(DType::kF32, {2, 3}, Layout{{4, 1}});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnCumsum), x, int64_t{1}, ACL_INT64, out), ACL_SUCCESS) << message();
  expect_values(out, {200, 300, 303, 4, 9, 15});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnCumsum), out, int64_t{-2}, ACL_INT64, out), ACL_SUCCESS) << message();
  expect_values(out, {200, 300, 303, 204, 309, 318});
  const TestScalar dim(int64_t{0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnCumprod), x, dim, ACL_FLOAT, floats), ACL_SUCCESS) << message();
  expect_values(floats, {200, 100, 3, 800, 500, 18});
}

TEST_F(AclnnReductions, WrongArgumentsAreNamed) {
  TestTensor x(DType::kF32, {2, 3}), out(DType::kF32, {2}), integers(DType::kI64, {2}),
      none(DType::kF32, {0, 3}), three(DType::kF32, {3});
  constexpr aclnnStatus kInvalid = ACLNN_ERR_PARAM_INVALID;
  const auto sum = [&](const Sizes& over, aclDataType type, const aclTensor* result) {
    return call(ANYNPU_PHASES(aclnnReduceSum), x, dims(over).get(), false, type,
                const_cast<aclTensor*>(result));
  };
  expect_failure(sum({2}, ACL_FLOAT, out), kInvalid, "dims is 2; -2 to 1 are accepted");
  expect_failure(sum({1, -1}, ACL_FLOAT, out), kInvalid, "dims has dimension 1 more than once");
  expect_failure(sum({0}, ACL_FLOAT, out), kInvalid, "out has shape [2]; [3] is accepted");
  expect_failure(sum({1}, ACL_BOOL, out), kInvalid, "dtype is bool; accepted are");
  expect_failure(sum({1}, ACL_FLOAT, integers), kInvalid, "the result has type f32, which out of type i64");
  expect_failure(call(ANYNPU_PHASES(aclnnMean), integers, dims({}).get(), false, ACL_INT64, out), kInvalid,
                 "dtype is i64; accepted are f16, bf16, f32, f64");
  expect_failure(call(ANYNPU_PHASES(aclnnArgMax), x, int64_t{1}, false, out), kInvalid,
                 "out has type f32; accepted are i32, i64");
  expect_failure(call(ANYNPU_PHASES(aclnnAmax), none, dims({0}).get(), false, three), kInvalid,
                 "self has shape [0, 3]; elements are needed");
  expect_failure(call(ANYNPU_PHASES(aclnnCumprod), x, TestScalar(1.5), ACL_FLOAT, x), kInvalid,
                 "dim is a float; an integer is accepted");
}

}  // namespace
}  // namespace anynpu::aclnn
