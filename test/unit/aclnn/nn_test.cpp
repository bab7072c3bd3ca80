#include <array>
#include <limits>
#include <memory>

#include "aclnnop/aclnn_adaptive_avg_pool2d.h"
#include "aclnnop/aclnn_adaptive_avg_pool2d_backward.h"
#include "aclnnop/aclnn_adaptive_avg_pool3d.h"
#include "aclnnop/aclnn_adaptive_avg_pool3d_backward.h"
#include "aclnnop/aclnn_adaptive_max_pool2d.h"
#include "aclnnop/aclnn_adaptive_max_pool2d_backward.h"
#include "aclnnop/aclnn_adaptive_max_pool3d.h"
#include "aclnnop/aclnn_adaptive_max_pool3d_backward.h"
#include "aclnnop/aclnn_avgpool2d.h"
#include "aclnnop/aclnn_avgpool2d_backward.h"
#include "aclnnop/aclnn_avgpool3d.h"
#include "aclnnop/aclnn_avgpool3d_backward.h"
#include "aclnnop/aclnn_batch_norm.h"
#include "aclnnop/aclnn_batch_norm_backward.h"
#include "aclnnop/aclnn_max_pool2d_with_indices.h"
#include "aclnnop/aclnn_max_pool2d_with_indices_backward.h"
#include "aclnnop/aclnn_max_pool3d_with_argmax.h"
#include "aclnnop/aclnn_max_pool3d_with_argmax_backward.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnBatchNorm : public AclnnTest {
 protected:
  void refused(aclnnStatus status, aclnnStatus expected, const std::string& what) {
    EXPECT_EQ(status, expected);
    const std::string message = aclGetRecentErrMsg();
    EXPECT_NE(message.find(what), std::string::npos) << what << ": " << message;
  }
};

TEST_F(AclnnBatchNorm, NormalizesByTheBatchInTrainingAndByTheRunningStatisticsElsewhere) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const TestTensor x(dtype, {2, 2, 2}, {1, 3, -2, -2, 5, 7, 2, 2}), weight(dtype, {2}, {2, 1}),
        bias(dtype, {2}, {1, -1}), mean(dtype, {2}, {8, 4}), variance(dtype, {2}, {4, 16}),
        y(dtype, {2, 2, 2}), saved(dtype, {2}), factor(dtype, {2});
    succeed(call(ANYNPU_PHASES(aclnnBatchNorm), x, weight, bias, mean, variance, false, 0.5, 0.0, y, nullptr,
                 nullptr));
    expect_values(y, {-6, -4, -2.5, -2.5, -2, 0, -1.5, -1.5});
    succeed(call(ANYNPU_PHASES(aclnnBatchNorm), x, nullptr, nullptr, mean, variance, true, 0.5, 0.0, y, saved,
                 factor));
    expect_values(saved, {4, 0});
    expect_values(mean, {6, 2});
    const auto values = factor.values();
    EXPECT_NEAR(values[0], 1 / std::sqrt(5.0), 2e-3);
    EXPECT_EQ(values[1], 0.5);
    EXPECT_EQ(y.values()[2], -1);
    EXPECT_NEAR(variance.values()[0], 0.5 * 4 + 0.5 * 20 / 3, 4e-2);
  }
}

TEST_F(AclnnBatchNorm, GivesTheGradientsOfTheMask) {
  const TestTensor x(DType::kF32, {4, 1}, {-3, -1, 1, 3}), grad(DType::kF32, {4, 1}, {1, 0, 0, 3}),
      weight(DType::kF32, {1}, {2}), mean(DType::kF32, {1}, {0}), factor(DType::kF32, {1}, {0.5}),
      variance(DType::kF32, {1}, {4}), of_x(DType::kF32, {4, 1}), of_weight(DType::kF32, {1}),
      of_bias(DType::kF32, {1});
  const auto backward = [&](std::array<bool, 3> wanted, bool training, const aclTensor* saved,
                            aclTensor* to_x) {
    aclBoolArray* const mask = aclCreateBoolArray(wanted.data(), wanted.size());
    const aclnnStatus status = call(ANYNPU_PHASES(aclnnBatchNormBackward), grad, x, weight, mean, variance,
                                    saved, factor, training, 0.0, mask, to_x, of_weight, of_bias);
    EXPECT_EQ(aclDestroyBoolArray(mask), ACL_SUCCESS);
    return status;
  };
  succeed(backward({true, true, true}, false, nullptr, of_x));
  expect_values(of_x, {1, 0, 0, 3});
  expect_values(of_weight, {3});
  expect_values(of_bias, {4});
  succeed(backward({true, true, true}, true, mean, of_x));
  expect_values(of_weight, {3});  // 6 * 0.5
  expect_values(of_x, {1.125, -0.625, -1.375, 0.875});
  refused(backward({true, false, false}, true, nullptr, of_x), ACLNN_ERR_PARAM_NULLPTR,
          "saveMeanOptional is null, but training is true");
  refused(backward({true, false, false}, true, mean, nullptr), ACLNN_ERR_PARAM_NULLPTR,
          "gradInputOptional is null, but outputMask[0] is true");
}

TEST_F(AclnnBatchNorm, SaysWhatDoesNotFit) {
  const TestTensor x(DType::kF32, {2, 3}), y(DType::kF32, {2, 3}), two(DType::kF32, {2}),
      flat(DType::kF32, {3}), other(DType::kF32, {3, 2}), saved(DType::kF32, {3}), factor(DType::kF32, {3});
  const auto forward = [&](const aclTensor* input, const aclTensor* weight, aclTensor* mean, bool training,
                           aclTensor* out) {
    return call(ANYNPU_PHASES(aclnnBatchNorm), input, weight, nullptr, mean, nullptr, training, 0.1, 1e-5,
                out, saved, factor);
  };
  refused(forward(x, two, nullptr, true, y), ACLNN_ERR_PARAM_INVALID, "weightOptional has shape [2]");
  refused(forward(x, flat, flat, true, y), ACLNN_ERR_PARAM_INVALID,
          "runningMeanOptional and runningVarOptional must both be null");
  refused(forward(x, nullptr, nullptr, false, y), ACLNN_ERR_PARAM_NULLPTR,
          "runningMeanOptional is null, but training is false");
  refused(forward(flat, nullptr, nullptr, true, flat), ACLNN_ERR_PARAM_INVALID, "input has shape [3]");
  refused(forward(x, nullptr, nullptr, true, other), ACLNN_ERR_PARAM_INVALID, "output has shape [3, 2]");
}

class AclnnPooling : public AclnnBatchNorm {
 protected:
  struct Numbers {
    std::shared_ptr<aclIntArray> array;
    Numbers(std::initializer_list<int64_t> values)
        : array(aclCreateIntArray(values.begin(), values.size()),
                [](aclIntArray* array) { EXPECT_EQ(aclDestroyIntArray(array), ACL_SUCCESS); }) {}
    operator const aclIntArray*() const { return array.get(); }  // NOLINT(google-explicit-constructor)
  };
  const Numbers one_{1}, two_{2}, none_{}, zero_{0};
};

TEST_F(AclnnPooling, FindsTheGreatestAndItsPlace) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64})
    for (const DType index : {DType::kI32, DType::kI64}) {
      const TestTensor x(dtype, {1, 3, 4}, {1, 1, 2, kNan, 5, 1, 0, 9, 5, 4, -1, -2}), of_x(dtype, {1, 3, 4}),
          whole(dtype, {1, 2, 3}), at(index, {1, 2, 3}), of_whole(dtype, {1, 2, 3}, {1, 2, 3, 4, 5, 6});
      succeed(call(ANYNPU_PHASES(aclnnMaxPool2dWithIndices), x, two_, none_, one_, one_, false, whole, at));
      expect_values(at, {0, 2, 3, 4, 9, 7});
      expect_values(whole, {1, 2, kNan, 5, 4, 9});
      succeed(call(ANYNPU_PHASES(aclnnMaxPool2dWithIndicesBackward), of_whole, x, at, two_, none_, one_, one_,
                   false, of_x));
      expect_values(of_x, {1, 0, 2, 3, 4, 0, 0, 6, 0, 5, 0, 0});
    }
}

TEST_F(AclnnPooling, TakesMeansOfWindows) {
  const TestTensor x(DType::kF32, {1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), y(DType::kF32, {1, 1, 2}),
      padded(DType::kF32, {1, 2, 3}), grad(DType::kF32, {1, 1, 2}, {4, 8}), of_x(DType::kF32, {1, 2, 4});
  const auto means = [&](const aclIntArray* padding, bool counts, int64_t divisor, aclTensor* out) {
    return call(ANYNPU_PHASES(aclnnAvgPool2d), x, two_, two_, padding, false, counts, divisor, int8_t{0},
                out);
  };
  succeed(means(zero_, true, 0, y));
  expect_values(y, {3.5, 5.5});
  succeed(means(zero_, true, 2, y));
  expect_values(y, {7, 11});
  succeed(means(one_, true, 0, padded));
  expect_values(padded, {0.25, 1.25, 1, 1.25, 3.25, 2});
  succeed(means(one_, false, 0, padded));
  expect_values(padded, {1, 2.5, 4, 5, 6.5, 8});
  succeed(call(ANYNPU_PHASES(aclnnAvgPool2dBackward), grad, x, two_, none_, zero_, false, true, int64_t{0},
               int8_t{0}, of_x));
  expect_values(of_x, {1, 1, 2, 2, 1, 1, 2, 2});
}

TEST_F(AclnnPooling, PoolsVolumes) {
  const TestTensor x(DType::kF32, {1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}), y(DType::kF32, {1, 1, 2, 1}),
      places(DType::kI32, {1, 1, 2, 1}), of_x(DType::kF32, {1, 2, 2, 2});
  const Numbers window{2, 1, 2};
  succeed(call(ANYNPU_PHASES(aclnnMaxPool3dWithArgmax), x, window, none_, zero_, one_, false, y, places));
  expect_values(y, {6, 8});
  expect_values(places, {5, 7});
  succeed(call(ANYNPU_PHASES(aclnnMaxPool3dWithArgmaxBackward), y, x, places, window, none_, zero_, one_,
               false, of_x));
  expect_values(of_x, {0, 0, 0, 0, 0, 6, 0, 8});
  succeed(call(ANYNPU_PHASES(aclnnAvgPool3d), x, window, none_, zero_, false, true, int64_t{0}, y));
  expect_values(y, {3.5, 5.5});
  succeed(
      call(ANYNPU_PHASES(aclnnAvgPool3dBackward), y, x, window, none_, zero_, false, true, int64_t{0}, of_x));
  expect_values(of_x, {0.875, 0.875, 1.375, 1.375, 0.875, 0.875, 1.375, 1.375});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveAvgPool3d), x, Numbers{1, 2, 1}, y));
  expect_values(y, {3.5, 5.5});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveAvgPool3dBackward), y, x, of_x));
  expect_values(of_x, {0.875, 0.875, 1.375, 1.375, 0.875, 0.875, 1.375, 1.375});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveMaxPool3d), x, Numbers{1, 2, 1}, y, places));
  expect_values(places, {5, 7});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveMaxPool3dBackward), y, x, places, of_x));
  expect_values(of_x, {0, 0, 0, 0, 0, 6, 0, 8});
}

TEST_F(AclnnPooling, DividesImagesIntoWindows) {
  const TestTensor x(DType::kF32, {1, 1, 3}, {1, 2, 6}), y(DType::kF32, {1, 1, 2}),
      of_x(DType::kF32, {1, 1, 3}), places(DType::kI64, {1, 1, 2});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveAvgPool2d), x, Numbers{1, 2}, y));
  expect_values(y, {1.5, 4});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveAvgPool2dBackward), y, x, of_x));
  expect_values(of_x, {0.75, 2.75, 2});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveMaxPool2d), x, Numbers{1, 2}, y, places));
  expect_values(y, {2, 6});
  expect_values(places, {1, 2});
  succeed(call(ANYNPU_PHASES(aclnnAdaptiveMaxPool2dBackward), y, x, places, of_x));
  expect_values(of_x, {0, 2, 6});
}

TEST_F(AclnnPooling, SaysWhatDoesNotFit) {
  const TestTensor x(DType::kF32, {1, 3, 4}), y(DType::kF32, {1, 1, 2}), wrong(DType::kF32, {1, 2, 2}),
      flat(DType::kF32, {3, 4}), none(DType::kF32, {1, 0, 4});
  const auto means = [&](const aclTensor* self, const aclIntArray* window, const aclIntArray* padding,
                         aclTensor* out) {
    return call(ANYNPU_PHASES(aclnnAvgPool2d), self, window, none_, padding, false, true, int64_t{0},
                int8_t{0}, out);
  };
  refused(means(flat, two_, zero_, y), ACLNN_ERR_PARAM_INVALID, "self has shape [3, 4]; 3 or 4 dimensions");
  refused(means(none, two_, zero_, y), ACLNN_ERR_PARAM_INVALID, "self has shape [1, 0, 4]");
  refused(means(x, Numbers{2, 0}, zero_, y), ACLNN_ERR_PARAM_INVALID,
          "kernelSize is [2, 0]; 2 numbers, 1 or more");
  refused(means(x, two_, two_, y), ACLNN_ERR_PARAM_INVALID,
          "padding is [2]; half of a window's size, 2, or less");
  refused(means(x, Numbers{5}, zero_, y), ACLNN_ERR_PARAM_INVALID,
          "self has shape [1, 3, 4]; an image that is with its padding as large as a window");
  refused(means(x, two_, zero_, wrong), ACLNN_ERR_PARAM_INVALID, "out has shape [1, 2, 2]");
  refused(call(ANYNPU_PHASES(aclnnAdaptiveAvgPool2d), x, Numbers{0, 2}, y), ACLNN_ERR_PARAM_INVALID,
          "outputSize is [0, 2]");
}

}  // namespace
}  // namespace anynpu::aclnn
