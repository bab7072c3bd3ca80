#include <cmath>
#include <limits>

#include "aclnnop/aclnn_abs.h"
#include "aclnnop/aclnn_addcdiv.h"
#include "aclnnop/aclnn_addcmul.h"
#include "aclnnop/aclnn_bitwise_and_tensor.h"
#include "aclnnop/aclnn_bitwise_or_tensor.h"
#include "aclnnop/aclnn_bitwise_xor_scalar.h"
#include "aclnnop/aclnn_ceil.h"
#include "aclnnop/aclnn_div.h"
#include "aclnnop/aclnn_eq_scalar.h"
#include "aclnnop/aclnn_eq_tensor.h"
#include "aclnnop/aclnn_exp.h"
#include "aclnnop/aclnn_fill_scalar.h"
#include "aclnnop/aclnn_floor.h"
#include "aclnnop/aclnn_ge_scalar.h"
#include "aclnnop/aclnn_gt_tensor.h"
#include "aclnnop/aclnn_is_finite.h"
#include "aclnnop/aclnn_le_tensor.h"
#include "aclnnop/aclnn_lerp.h"
#include "aclnnop/aclnn_log.h"
#include "aclnnop/aclnn_logical_and.h"
#include "aclnnop/aclnn_logical_not.h"
#include "aclnnop/aclnn_logical_or.h"
#include "aclnnop/aclnn_logical_xor.h"
#include "aclnnop/aclnn_lt_scalar.h"
#include "aclnnop/aclnn_masked_fill_scalar.h"
#include "aclnnop/aclnn_masked_fill_tensor.h"
#include "aclnnop/aclnn_maximum.h"
#include "aclnnop/aclnn_minimum.h"
#include "aclnnop/aclnn_ne_tensor.h"
#include "aclnnop/aclnn_neg.h"
#include "aclnnop/aclnn_one.h"
#include "aclnnop/aclnn_reciprocal.h"
#include "aclnnop/aclnn_sigmoid.h"
#include "aclnnop/aclnn_sqrt.h"
#include "aclnnop/aclnn_tanh.h"
#include "aclnnop/aclnn_zero.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnArithmetic : public AclnnTest {};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                 kInfinity = std::numeric_limits<double>::infinity();

TEST_F(AclnnArithmetic, OfOneTensor) {
  TestTensor x(DType::kF32, {2, 2}, {0.25, 1, 4, kInfinity}), out(DType::kF32, {2, 2});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnNeg), x, out), ACL_SUCCESS) << message();
  expect_values(out, {-0.25, -1, -4, -kInfinity});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnReciprocal), x, out), ACL_SUCCESS) << message();
  expect_values(out, {4, 1, 0.25, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSqrt), x, out), ACL_SUCCESS) << message();
  expect_values(out, {0.5, 1, 2, kInfinity});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnExp), x, out), ACL_SUCCESS) << message();
  expect_values(out, {std::exp(0.25), std::exp(1.0), std::exp(4.0), kInfinity}, 1e-6);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnLog), x, out), ACL_SUCCESS) << message();
  expect_values(out, {std::log(0.25), 0, std::log(4.0), kInfinity}, 1e-6);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnTanh), x, out), ACL_SUCCESS) << message();
  expect_values(out, {std::tanh(0.25), std::tanh(1.0), std::tanh(4.0), 1}, 1e-6);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnSigmoid), x, out), ACL_SUCCESS) << message();
  expect_values(out, {1 / (1 + std::exp(-0.25)), 1 / (1 + std::exp(-1.0)), 1 / (1 + std::exp(-4.0)), 1},
                1e-6);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceNeg), x), ACL_SUCCESS) << message();
  expect_values(x, {-0.25, -1, -4, -kInfinity});
}

TEST_F(AclnnArithmetic, OfSeveralTensors) {
  TestTensor x(DType::kF16, {3}, {1, -2, kNaN}), y(DType::kF32, {3}, {4, -8, 2}), out(DType::kF32, {3});
  const TestScalar two(2.0), half(0.5);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnDiv), x, y, out), ACL_SUCCESS) << message();
  expect_values(out, {0.25, 0.25, kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnDivs), y, two, out), ACL_SUCCESS) << message();
  expect_values(out, {2, -4, 1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMaximum), x, y, out), ACL_SUCCESS) << message();
  expect_values(out, {4, -2, kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnMinimum), x, y, out), ACL_SUCCESS) << message();
  expect_values(out, {1, -8, kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnAddcmul), y, x, y, two, out), ACL_SUCCESS) << message();
  expect_values(out, {12, 24, kNaN});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceAddcdiv), y, x, y, two), ACL_SUCCESS) << message();
  expect_values(y, {4.5, -7.5, kNaN});
  TestTensor from(DType::kF32, {2}, {0, 10}), to(DType::kF32, {2}, {10, 20}), between(DType::kF32, {2});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnLerps), from, to, half, between), ACL_SUCCESS) << message();
  expect_values(between, {5, 15});
}

TEST_F(AclnnArithmetic, Comparisons) {
  TestTensor x(DType::kI32, {4}, {-1, 0, 1, 2}), y(DType::kF32, {4}, {-1, 0.5, 0.5, kNaN}),
      out(DType::kBool, {4}), numbers(DType::kF32, {4});
  const TestScalar half(0.5), one(int64_t{1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnEqTensor), x, y, out), ACL_SUCCESS) << message();
  expect_values(out, {1, 0, 0, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnNeTensor), x, y, numbers), ACL_SUCCESS) << message();
  expect_values(numbers, {0, 1, 1, 1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnGtTensor), x, y, out), ACL_SUCCESS) << message();
  expect_values(out, {0, 0, 1, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnLeTensor), x, y, out), ACL_SUCCESS) << message();
  expect_values(out, {1, 1, 0, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnLtScalar), x, half, out), ACL_SUCCESS) << message();
  expect_values(out, {1, 1, 0, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnGeScalar), x, one, out), ACL_SUCCESS) << message();
  expect_values(out, {0, 0, 1, 1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnEqScalar), y, half, out), ACL_SUCCESS) << message();
  expect_values(out, {0, 1, 1, 0});
}

TEST_F(AclnnArithmetic, Fills) {
  TestTensor x(DType::kBF16, {2, 3}, Layout{{1, 2}}), integers(DType::kI8, {2}), empty(DType::kF32, {0});
  const TestScalar value(2.5), large(int64_t{300}), mask_value(-1.0);
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceOne), x), ACL_SUCCESS) << message();
  expect_values(x, {1, 1, 1, 1, 1, 1});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceFillScalar), x, value), ACL_SUCCESS) << message();
  expect_values(x, {2.5, 2.5, 2.5, 2.5, 2.5, 2.5});
  TestTensor mask(DType::kBool, {3}, {0, 1, 0}), number(DType::kF32, {}, {7});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceMaskedFillScalar), x, mask, mask_value), ACL_SUCCESS) << message();
  expect_values(x, {2.5, -1, 2.5, 2.5, -1, 2.5});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceMaskedFillTensor), x, mask, number), ACL_SUCCESS) << message();
  expect_values(x, {2.5, 7, 2.5, 2.5, 7, 2.5});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceZero), x), ACL_SUCCESS) << message();
  expect_values(x, {0, 0, 0, 0, 0, 0});
  ASSERT_EQ(call(ANYNPU_PHASES(aclnnInplaceFillScalar), integers, large), ACL_SUCCESS) << message();
  expect_values(integers, {44, 44});  // wraps around
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnInplaceZero), empty), ACL_SUCCESS) << message();
  TestTensor two_numbers(DType::kF32, {2}, {1, 2});
  expect_failure(call(ANYNPU_PHASES(aclnnInplaceMaskedFillTensor), x, mask, two_numbers),
                 ACLNN_ERR_PARAM_INVALID, "value has shape [2]; [] is accepted");
}

TEST_F(AclnnArithmetic, AnswersWhatElementsAreAndCombinesTheirBits) {
  const double inf = std::numeric_limits<double>::infinity();
  const TestTensor x(DType::kF16, {4}, {-1.5, 0, inf, -inf}), y(DType::kF16, {4}, {0, 0, 1, 2}),
      out(DType::kF16, {4}), truth(DType::kBool, {4});
  succeed(call(ANYNPU_PHASES(aclnnAbs), x, out));
  expect_values(out, {1.5, 0, inf, inf});
  succeed(call(ANYNPU_PHASES(aclnnCeil), x, out));
  expect_values(out, {-1, 0, inf, -inf});
  succeed(call(ANYNPU_PHASES(aclnnFloor), x, out));
  expect_values(out, {-2, 0, inf, -inf});
  succeed(call(ANYNPU_PHASES(aclnnIsFinite), x, truth));
  expect_values(truth, {1, 1, 0, 0});
  succeed(call(ANYNPU_PHASES(aclnnLogicalAnd), x, y, truth));
  expect_values(truth, {0, 0, 1, 1});
  succeed(call(ANYNPU_PHASES(aclnnLogicalOr), x, y, truth));
  expect_values(truth, {1, 0, 1, 1});
  succeed(call(ANYNPU_PHASES(aclnnLogicalXor), x, y, truth));
  expect_values(truth, {1, 0, 0, 0});
  succeed(call(ANYNPU_PHASES(aclnnInplaceLogicalNot), x));
  expect_values(x, {0, 1, 0, 0});
  const TestTensor a(DType::kI16, {4}, {6, -1, 255, 0}), b(DType::kI32, {4}, {3, 7, 256, 9}),
      bits(DType::kI32, {4});
  succeed(call(ANYNPU_PHASES(aclnnBitwiseAndTensor), a, b, bits));
  expect_values(bits, {2, 7, 0, 0});
  succeed(call(ANYNPU_PHASES(aclnnBitwiseOrTensor), a, b, bits));
  expect_values(bits, {7, -1, 511, 9});
  succeed(call(ANYNPU_PHASES(aclnnBitwiseXorScalar), a, TestScalar(int64_t{3}), bits));
  expect_values(bits, {5, -4, 252, 3});
  EXPECT_EQ(call(ANYNPU_PHASES(aclnnBitwiseAndTensor), y, a, out), ACLNN_ERR_PARAM_INVALID);
}

}  // namespace
}  // namespace anynpu::aclnn
