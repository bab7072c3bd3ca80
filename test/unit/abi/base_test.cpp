#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "abi_test.h"
#include "base/half.h"

extern "C" size_t c_program_describes_a_tensor();

namespace {

using AclBase = AclTest;

TEST_F(AclBase, HeadersServeCPrograms) { EXPECT_EQ(c_program_describes_a_tensor(), 2u * 3 * 4 * 2); }

TEST_F(AclBase, DataTypeSizes) {
  const std::pair<aclDataType, size_t> sizes[] = {
      {ACL_BOOL, 1},   {ACL_INT8, 1},   {ACL_UINT8, 1},       {ACL_FLOAT16, 2},      {ACL_BF16, 2},
      {ACL_INT16, 2},  {ACL_UINT16, 2}, {ACL_FLOAT, 4},       {ACL_INT32, 4},        {ACL_UINT32, 4},
      {ACL_DOUBLE, 8}, {ACL_INT64, 8},  {ACL_UINT64, 8},      {ACL_COMPLEX32, 4},    {ACL_COMPLEX64, 8},
      {ACL_INT4, 0},   {ACL_STRING, 0}, {ACL_COMPLEX128, 16}, {ACL_DT_UNDEFINED, 0}, {ACL_FLOAT8_E5M2, 1},
  };
  for (const auto& [type, size] : sizes) EXPECT_EQ(aclDataTypeSize(type), size) << type;
}

/// The value of a half-precision number by its definition.
double value_of_half(uint16_t half) {
  const int exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  if (exponent == 0x1f) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

TEST_F(AclBase, EveryHalfWidensExactlyAndComesBack) {
  for (uint32_t half = 0; half <= 0xffff; ++half) {
    const float value = aclFloat16ToFloat(static_cast<aclFloat16>(half));
    const double expected = value_of_half(static_cast<uint16_t>(half));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << half;
      ASSERT_EQ(aclFloatToFloat16(value) & 0xfe00, (half & 0x8000) | 0x7e00) << half;
    } else {
      ASSERT_EQ(value, expected) << half;
      ASSERT_EQ(std::signbit(value), std::signbit(expected)) << half;
      ASSERT_EQ(aclFloatToFloat16(value), half);
    }
  }
}

TEST_F(AclBase, FloatsRoundToTheNearestHalfTiesToEven) {
  // Between each pair of neighbours: the midpoint goes to the even one, its own neighbours to the nearer one.
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = aclFloat16ToFloat(half), high = aclFloat16ToFloat(half + 1);
    const float middle = low + (high - low) / 2;
    const auto even = static_cast<uint16_t>(half + (half & 1));
    for (const float sign : {1.0f, -1.0f}) {
      const uint16_t bit = sign < 0 ? 0x8000 : 0;
      ASSERT_EQ(aclFloatToFloat16(sign * middle), bit | even) << half;
      ASSERT_EQ(aclFloatToFloat16(sign * std::nextafter(middle, low)), bit | half) << half;
      ASSERT_EQ(aclFloatToFloat16(sign * std::nextafter(middle, high)), bit | (half + 1)) << half;
    }
  }
  EXPECT_EQ(aclFloatToFloat16(65519.996f), 0x7bff);
  EXPECT_EQ(aclFloatToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(aclFloatToFloat16(-std::numeric_limits<float>::max()), 0xfc00);
  EXPECT_EQ(aclFloatToFloat16(0x1p-25f), 0) << "a tie with zero";
  EXPECT_EQ(aclFloatToFloat16(std::numeric_limits<float>::denorm_min()), 0);
}

TEST_F(AclBase, DataBuffersDescribeMemory) {
  int first = 0, second = 0;
  aclDataBuffer* buffer = aclCreateDataBuffer(&first, size_t{5} << 32);
  EXPECT_EQ(aclGetDataBufferAddr(buffer), &first);
  EXPECT_EQ(aclGetDataBufferSizeV2(buffer), size_t{5} << 32);
  EXPECT_EQ(aclGetDataBufferSize(buffer), 0u) << "the size is cut to 32 bits";
  EXPECT_EQ(aclUpdateDataBuffer(buffer, &second, 4), ACL_SUCCESS);
  EXPECT_EQ(aclGetDataBufferAddr(buffer), &second);
  EXPECT_EQ(aclGetDataBufferSize(buffer), 4u);
  EXPECT_EQ(aclDestroyDataBuffer(buffer), ACL_SUCCESS);
  expect_failure(aclDestroyDataBuffer(buffer), ACL_ERROR_RT_INVALID_HANDLE, "dataBuffer");
  EXPECT_EQ(aclGetDataBufferAddr(buffer), nullptr);
  EXPECT_EQ(aclGetDataBufferSizeV2(nullptr), 0u);
}

TEST_F(AclBase, TensorDescriptions) {
  const int64_t dims[] = {4, 5, 6};
  aclTensorDesc* desc = aclCreateTensorDesc(ACL_BF16, 3, dims, ACL_FORMAT_NCHW);
  EXPECT_EQ(aclGetTensorDescType(desc), ACL_BF16);
  EXPECT_EQ(aclGetTensorDescFormat(desc), ACL_FORMAT_NCHW);
  EXPECT_EQ(aclGetTensorDescNumDims(desc), 3u);
  EXPECT_EQ(aclGetTensorDescElementCount(desc), 120u);
  EXPECT_EQ(aclGetTensorDescSize(desc), 240u);
  EXPECT_EQ(aclGetTensorDescDim(desc, 2), 6);
  int64_t dim = 0;
  EXPECT_EQ(aclGetTensorDescDimV2(desc, 1, &dim), ACL_SUCCESS);
  EXPECT_EQ(dim, 5);
  EXPECT_EQ(aclGetTensorDescDim(desc, 3), -1);
  expect_failure(aclGetTensorDescDimV2(desc, 3, &dim), ACL_ERROR_INVALID_PARAM, "index is 3");
  expect_failure(aclGetTensorDescDimV2(desc, 1, nullptr), ACL_ERROR_INVALID_PARAM, "dimSize is null");
  EXPECT_STREQ(aclGetTensorDescName(desc), "");
  aclSetTensorDescName(desc, "weight");
  EXPECT_STREQ(aclGetTensorDescName(desc), "weight");

  int64_t ranges[3][2] = {{1, 4}, {5, 5}, {6, -1}}, range[2] = {};
  expect_failure(aclGetTensorDescDimRange(desc, 0, 2, range), ACL_ERROR_INVALID_PARAM, "0 ranges");
  EXPECT_EQ(aclSetTensorShapeRange(desc, 3, ranges), ACL_SUCCESS);
  EXPECT_EQ(aclGetTensorDescDimRange(desc, 2, 2, range), ACL_SUCCESS);
  EXPECT_EQ(range[0], 6);
  EXPECT_EQ(range[1], -1);
  expect_failure(aclSetTensorShapeRange(desc, 2, ranges), ACL_ERROR_INVALID_PARAM, "dimsCount 2");
  expect_failure(aclGetTensorDescDimRange(desc, 2, 1, range), ACL_ERROR_INVALID_PARAM, "dimRangeNum 1");
  aclDestroyTensorDesc(desc);
  EXPECT_EQ(aclGetTensorDescType(desc), ACL_DT_UNDEFINED) << "destroyed";
}

TEST_F(AclBase, TensorDescriptionsOfUnknownShapes) {
  const int64_t unknown_dim[] = {-1, 3}, unknown_rank[] = {-2}, wrong[] = {-3, 1},
                huge[] = {1ll << 40, 1ll << 40};
  aclTensorDesc* desc = aclCreateTensorDesc(ACL_FLOAT, 2, unknown_dim, ACL_FORMAT_ND);
  EXPECT_EQ(aclGetTensorDescElementCount(desc), 0u);
  EXPECT_EQ(aclGetTensorDescDim(desc, 0), -1);
  EXPECT_EQ(message(), "") << "an unknown dim is no failure";
  aclDestroyTensorDesc(desc);

  desc = aclCreateTensorDesc(ACL_FLOAT, 1, unknown_rank, ACL_FORMAT_ND);
  EXPECT_EQ(aclGetTensorDescNumDims(desc), ACL_UNKNOWN_RANK);
  aclDestroyTensorDesc(desc);

  desc = aclCreateTensorDesc(ACL_FLOAT, 0, nullptr, ACL_FORMAT_ND);
  EXPECT_EQ(aclGetTensorDescElementCount(desc), 1u) << "a scalar";
  aclDestroyTensorDesc(desc);

  desc = aclCreateTensorDesc(ACL_FLOAT, 2, huge, ACL_FORMAT_ND);
  EXPECT_EQ(aclGetTensorDescElementCount(desc), 0u);
  EXPECT_NE(message().find("aclGetTensorDescElementCount"), std::string::npos);
  aclDestroyTensorDesc(desc);

  EXPECT_EQ(aclCreateTensorDesc(ACL_FLOAT, 2, wrong, ACL_FORMAT_ND), nullptr);
  EXPECT_NE(message().find("dims[0] is -3"), std::string::npos);
  EXPECT_EQ(aclCreateTensorDesc(ACL_FLOAT, 2, nullptr, ACL_FORMAT_ND), nullptr);
  EXPECT_EQ(aclCreateTensorDesc(ACL_FLOAT, -1, wrong, ACL_FORMAT_ND), nullptr);
}

TEST_F(AclBase, TheLogShowsMessagesFromItsLevelOn) {
  testing::internal::CaptureStderr();
  aclAppLog(ACL_ERROR, "load", "model.cpp", 12, "%s has %d parts", "model", 3);
  aclAppLog(ACL_WARNING, "load", "model.cpp", 13, "not shown: errors are the default");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "[ERROR] model.cpp:12 load: model has 3 parts\n");
  aclAppLog(static_cast<aclLogLevel>(9), "load", "model.cpp", 14, "no such level");
  EXPECT_NE(message().find("logLevel is 9"), std::string::npos);
}

TEST_F(AclBase, CountsOfDimsAreBounded) {
  const int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 40, 0}, unknown_rank = -2;
  aclTensorDesc* empty = aclCreateTensorDesc(ACL_FLOAT, 3, huge, ACL_FORMAT_ND);
  EXPECT_EQ(aclGetTensorDescElementCount(empty), 0u);
  EXPECT_EQ(message(), "") << "no overflow: there is no element";
  aclDestroyTensorDesc(empty);
  EXPECT_EQ(aclCreateTensorDesc(ACL_FLOAT, 1 << 30, huge, ACL_FORMAT_ND), nullptr);
  EXPECT_NE(message().find("numDims is 1073741824"), std::string::npos);

  aclTensorDesc* desc = aclCreateTensorDesc(ACL_FLOAT, 1, &unknown_rank, ACL_FORMAT_ND);
  int64_t range[1][ACL_TENSOR_SHAPE_RANGE_NUM] = {{1, 2}};
  expect_failure(aclSetTensorShapeRange(desc, SIZE_MAX, range), ACL_ERROR_INVALID_PARAM, "here of 0 to 128");
  EXPECT_EQ(aclSetTensorShapeRange(desc, 1, range), ACL_SUCCESS);
  aclDestroyTensorDesc(desc);
}

}  // namespace
