#include <array>
#include <memory>

#include "aclnnop/aclnn_convolution.h"
#include "aclnnop/aclnn_convolution_backward.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

/// An array of the C interface, which ends with this.
struct Numbers {
  std::shared_ptr<aclIntArray> array;
  Numbers(std::initializer_list<int64_t> values)
      : array(aclCreateIntArray(values.begin(), values.size()),
              [](aclIntArray* array) { EXPECT_EQ(aclDestroyIntArray(array), ACL_SUCCESS); }) {}
  operator const aclIntArray*() const { return array.get(); }  // NOLINT(google-explicit-constructor)
};

class AclnnConvolution : public AclnnTest {
 protected:
  const Numbers ones_{1, 1}, none_{0, 0};
};

TEST_F(AclnnConvolution, SumsWhatIsUnderTheWindow) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const TestTensor image(dtype, {1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
        weight(dtype, {2, 1, 2, 2}, {1, 0, 0, 1, 2, 1, 1, 0}), bias(dtype, {2}, {10, -1}),
        out(dtype, {1, 2, 2, 2}), strided(dtype, {1, 2, 2, 2});
    succeed(call(ANYNPU_PHASES(aclnnConvolution), image, weight, bias, ones_, none_, ones_, false, none_,
                 int64_t{1}, out, int8_t{0}));
    expect_values(out, {16, 18, 22, 24, 7, 11, 19, 23});
    succeed(call(ANYNPU_PHASES(aclnnConvolution), image, weight, nullptr, Numbers{2}, ones_, ones_, false,
                 none_, int64_t{1}, strided, int8_t{1}));
    expect_values(strided, {1, 3, 7, 14, 0, 2, 4, 24});
  }
}

TEST_F(AclnnConvolution, SpreadsWhereTransposed) {
  const TestTensor image(DType::kF32, {1, 2, 2}, {1, 2, 3, 4}),
      weight(DType::kF32, {2, 1, 2}, {1, 10, 100, 1000}), out(DType::kF32, {1, 1, 5});
  succeed(call(ANYNPU_PHASES(aclnnConvolution), image, weight, nullptr, Numbers{2}, Numbers{0}, Numbers{1},
               true, Numbers{1}, int64_t{1}, out, int8_t{0}));
  expect_values(out, {301, 3010, 402, 4020, 0});
}

TEST_F(AclnnConvolution, GivesTheGradientsOfTheMask) {
  const TestTensor gradient(DType::kF32, {1, 1, 2, 2}, {1, 2, 3, 4}),
      image(DType::kF32, {1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
      weight(DType::kF32, {1, 1, 2, 2}, {1, 2, 3, 4}), of_image(DType::kF32, {1, 1, 3, 3}),
      of_weight(DType::kF32, {1, 1, 2, 2}), of_bias(DType::kF32, {1});
  const auto backward = [&](std::array<bool, 3> wanted, aclTensor* to_image, aclTensor* to_weight,
                            aclTensor* to_bias) {
    aclBoolArray* const mask = aclCreateBoolArray(wanted.data(), wanted.size());
    const aclnnStatus status =
        call(ANYNPU_PHASES(aclnnConvolutionBackward), gradient, image, weight, Numbers{1}, ones_, none_,
             ones_, false, none_, int64_t{1}, mask, int8_t{0}, to_image, to_weight, to_bias);
    EXPECT_EQ(aclDestroyBoolArray(mask), ACL_SUCCESS);
    return status;
  };
  succeed(backward({true, true, true}, of_image, of_weight, of_bias));
  expect_values(of_image, {1, 4, 4, 6, 20, 16, 9, 24, 16});
  expect_values(of_weight, {37, 47, 67, 77});
  expect_values(of_bias, {10});
  succeed(backward({false, false, true}, nullptr, nullptr, of_bias));
  EXPECT_EQ(backward({true, false, false}, nullptr, nullptr, nullptr), ACLNN_ERR_PARAM_NULLPTR);
}

TEST_F(AclnnConvolution, SaysWhatDoesNotFit) {
  const TestTensor image(DType::kF32, {1, 4, 3, 3}), weight(DType::kF32, {2, 3, 2, 2}),
      out(DType::kF32, {1, 2, 2, 2}), half(DType::kF16, {2, 4, 2, 2}), large(DType::kF32, {2, 4, 5, 5}),
      fits(DType::kF32, {2, 4, 2, 2}), flat(DType::kF32, {4, 3});
  const auto refused = [&](const aclTensor* x, const aclTensor* by, const aclIntArray* stride,
                           const std::string& what) {
    EXPECT_EQ(call(ANYNPU_PHASES(aclnnConvolution), x, by, nullptr, stride, none_, ones_, false, none_,
                   int64_t{1}, out, int8_t{0}),
              ACLNN_ERR_PARAM_INVALID);
    EXPECT_NE(std::string(aclGetRecentErrMsg()).find(what), std::string::npos) << aclGetRecentErrMsg();
  };
  refused(image, weight, ones_,
          "weight has shape [2, 3, 2, 2], but input has shape [1, 4, 3, 3] and there are 1 groups");
  refused(image, half, ones_, "weight");
  refused(image, large, ones_, "at least as large as the window");
  refused(flat, weight, ones_, "input has 2 dimensions; 3 to 5 are accepted");
  refused(image, fits, none_, "stride is [0, 0]; 2 numbers, 1 or more, are accepted");
  refused(image, fits, Numbers({1, 1, 1}), "stride is [1, 1, 1]; 2 numbers");
}

}  // namespace
}  // namespace anynpu::aclnn
