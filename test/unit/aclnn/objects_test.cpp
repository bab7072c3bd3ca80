#include <thread>

#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnObjects : public AclnnTest {};

TEST_F(AclnnObjects, OfTestsEndWhereMemoryFaults) {
  const TestTensor x(DType::kI16, {33});
  const auto* begin = static_cast<const std::byte*>(x.memory());
  EXPECT_TRUE(tile::readable(begin) && tile::readable(begin + 65));
  EXPECT_FALSE(tile::readable(begin + 66));
}

TEST_F(AclnnObjects, TensorsSayWhatTheyWereMadeWith) {
  const int64_t sizes[] = {2, 3}, strides[] = {1, 4}, storage[] = {3, 5};
  int memory = 0;
  aclTensor* tensor =
      aclCreateTensor(sizes, 2, ACL_FLOAT16, strides, 2, ACL_FORMAT_NCHW, storage, 2, &memory);
  ASSERT_NE(tensor, nullptr) << message();
  const auto read = [&](auto function) {
    int64_t* values = nullptr;
    uint64_t count = 0;
    EXPECT_EQ(function(tensor, &values, &count), ACL_SUCCESS) << message();
    const std::unique_ptr<int64_t[]> owned(values);
    return Sizes(values, values + count);
  };
  EXPECT_EQ(read(aclGetViewShape), (Sizes{2, 3}));
  EXPECT_EQ(read(aclGetViewStrides), (Sizes{1, 4}));
  EXPECT_EQ(read(aclGetStorageShape), (Sizes{3, 5}));
  int64_t offset = 0;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  aclDataType type = ACL_DT_UNDEFINED;
  EXPECT_EQ(aclGetViewOffset(tensor, &offset), ACL_SUCCESS);
  EXPECT_EQ(aclGetFormat(tensor, &format), ACL_SUCCESS);
  EXPECT_EQ(aclGetDataType(tensor, &type), ACL_SUCCESS);
  EXPECT_EQ(offset, 2);
  EXPECT_EQ(format, ACL_FORMAT_NCHW);
  EXPECT_EQ(type, ACL_FLOAT16);

  EXPECT_EQ(aclInitTensor(tensor, sizes, 1, ACL_COMPLEX64, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr),
            ACL_SUCCESS);
  EXPECT_EQ(read(aclGetViewShape), (Sizes{2}));
  EXPECT_EQ(read(aclGetViewStrides), (Sizes{1}));
  EXPECT_EQ(read(aclGetStorageShape), Sizes{});
  EXPECT_EQ(aclGetDataType(tensor, &type), ACL_SUCCESS);
  EXPECT_EQ(type, ACL_COMPLEX64) << "any published type is described";

  EXPECT_EQ(aclDestroyTensor(tensor), ACL_SUCCESS);
  expect_failure(aclDestroyTensor(tensor), ACLNN_ERR_PARAM_INVALID, "it was destroyed");
  expect_failure(aclGetDataType(tensor, &type), ACLNN_ERR_PARAM_INVALID, "aclGetDataType failed");
  expect_failure(aclDestroyTensor(nullptr), ACLNN_ERR_PARAM_NULLPTR, "tensor is null; it must be a tensor");
}

TEST_F(AclnnObjects, TensorsWithoutStridesAreContiguous) {
  const int64_t sizes[] = {2, 0, 4};
  aclTensor* tensor = aclCreateTensor(sizes, 3, ACL_INT8, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr);
  int64_t* strides = nullptr;
  uint64_t count = 0;
  ASSERT_EQ(aclGetViewStrides(tensor, &strides, &count), ACL_SUCCESS) << message();
  EXPECT_EQ(Sizes(strides, strides + count), (Sizes{4, 4, 1}));
  delete[] strides;
  EXPECT_EQ(aclDestroyTensor(tensor), ACL_SUCCESS);
}

TEST_F(AclnnObjects, WhatIsNoTensorIsRefused) {
  const int64_t sizes[] = {2, 3}, negative[] = {2, -1}, strides[] = {3, 1},
                huge[] = {int64_t{1} << 40, int64_t{1} << 40}, small[] = {5}, wide[] = {INT64_MAX, 1};
  int memory = 0;
  const struct {
    const int64_t* sizes;
    uint64_t count;
    int type;
    const int64_t* strides;
    int64_t offset;
    const int64_t* storage;
    const char* expected;
    aclnnStatus code = ACLNN_ERR_PARAM_INVALID;
  } cases[] = {
      {nullptr, 2, ACL_FLOAT, strides, 0, sizes, "viewDims is null, but viewDimsNum is 2",
       ACLNN_ERR_PARAM_NULLPTR},
      {sizes, 129, ACL_FLOAT, strides, 0, sizes, "viewDimsNum is 129; 0 to 128 are accepted"},
      {negative, 2, ACL_FLOAT, strides, 0, sizes, "viewDims[1] is -1"},
      {sizes, 2, ACL_FLOAT, negative, 0, sizes, "stride[1] is -1"},
      {sizes, 2, ACL_FLOAT, strides, -1, sizes, "offset is -1"},
      {sizes, 2, ACL_DT_UNDEFINED, strides, 0, sizes, "dataType is -1"},
      {sizes, 2, 1000, strides, 0, sizes, "dataType is 1000"},
      {huge, 2, ACL_FLOAT, strides, 0, nullptr, "viewDims have more elements than"},
      {sizes, 2, ACL_FLOAT, wide, 0, nullptr, "stride[0] is 9223372036854775807"},
      {sizes, 2, ACL_FLOAT, strides, 0, small, "reach element 5, but storageDims have 5 elements"},
  };
  for (const auto& bad : cases) {
    const uint64_t storage = bad.storage == nullptr ? 0 : bad.storage == small ? 1 : 2;
    EXPECT_EQ(aclCreateTensor(bad.sizes, bad.count, static_cast<aclDataType>(bad.type), bad.strides,
                              bad.offset, ACL_FORMAT_ND, bad.storage, storage, &memory),
              nullptr);
    const std::string text = message();
    EXPECT_NE(text.find(bad.expected), std::string::npos) << text;
    EXPECT_NE(text.find(concat("aclCreateTensor failed (", bad.code)), std::string::npos) << text;
  }
}

TEST_F(AclnnObjects, ArraysHaveSizes) {
  const int64_t integers[] = {1, 2, 3};
  const float floats[] = {1, 2};
  const bool bools[] = {true};
  uint64_t size = 9;
  aclIntArray* of_integers = aclCreateIntArray(integers, 3);
  aclFloatArray* of_floats = aclCreateFloatArray(floats, 2);
  aclBoolArray* of_bools = aclCreateBoolArray(bools, 1);
  aclIntArray* empty = aclCreateIntArray(nullptr, 0);
  EXPECT_EQ(aclGetIntArraySize(of_integers, &size), ACL_SUCCESS);
  EXPECT_EQ(size, 3u);
  EXPECT_EQ(aclGetFloatArraySize(of_floats, &size), ACL_SUCCESS);
  EXPECT_EQ(size, 2u);
  EXPECT_EQ(aclGetBoolArraySize(of_bools, &size), ACL_SUCCESS);
  EXPECT_EQ(size, 1u);
  EXPECT_EQ(aclGetIntArraySize(empty, &size), ACL_SUCCESS);
  EXPECT_EQ(size, 0u);
  expect_failure(aclGetIntArraySize(of_integers, nullptr), ACLNN_ERR_PARAM_NULLPTR, "size is null");
  expect_failure(aclDestroyIntArray(reinterpret_cast<aclIntArray*>(of_floats)), ACLNN_ERR_PARAM_INVALID,
                 "is an array of floats, not an array of integers");
  EXPECT_EQ(aclCreateFloatArray(nullptr, 2), nullptr);
  EXPECT_NE(message().find("value is null, but size is 2"), std::string::npos);
  EXPECT_EQ(aclDestroyIntArray(of_integers), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyFloatArray(of_floats), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyBoolArray(of_bools), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyIntArray(empty), ACL_SUCCESS);
}

TEST_F(AclnnObjects, ListsOwnTheirMembers) {
  double value = 1;
  aclScalar* scalars[] = {aclCreateScalar(&value, ACL_DOUBLE), aclCreateScalar(&value, ACL_INT64)};
  aclScalarList* list = aclCreateScalarList(scalars, 2);
  uint64_t size = 0;
  EXPECT_EQ(aclGetScalarListSize(list, &size), ACL_SUCCESS);
  EXPECT_EQ(size, 2u);
  EXPECT_EQ(aclDestroyScalar(scalars[0]), ACL_SUCCESS) << "a member may end first";
  EXPECT_EQ(aclDestroyScalarList(list), ACL_SUCCESS);
  expect_failure(aclDestroyScalar(scalars[1]), ACLNN_ERR_PARAM_INVALID, "it was destroyed");
  expect_failure(aclDestroyScalarList(list), ACLNN_ERR_PARAM_INVALID, "it was destroyed");

  const int64_t sizes[] = {1};
  const aclTensor* tensors[] = {
      aclCreateTensor(sizes, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr), nullptr};
  EXPECT_EQ(aclCreateTensorList(tensors, 2), nullptr);
  EXPECT_NE(message().find("value[1] is null; it must be a tensor"), std::string::npos);
  aclTensorList* of_one = aclCreateTensorList(tensors, 1);
  EXPECT_EQ(aclGetTensorListSize(of_one, &size), ACL_SUCCESS);
  EXPECT_EQ(size, 1u);
  EXPECT_EQ(aclDestroyTensorList(of_one), ACL_SUCCESS);
  expect_failure(aclDestroyTensor(tensors[0]), ACLNN_ERR_PARAM_INVALID, "it was destroyed");
}

TEST_F(AclnnObjects, ScalarsNeedANumber) {
  EXPECT_EQ(aclCreateScalar(nullptr, ACL_FLOAT), nullptr);
  EXPECT_NE(message().find("value is null"), std::string::npos);
  float value = 1;
  EXPECT_EQ(aclCreateScalar(&value, ACL_STRING), nullptr);
  EXPECT_NE(message().find("dataType is 13"), std::string::npos);
}

TEST_F(AclnnObjects, ThreadsMakeAndEndThem) {
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 200; ++round) {
        const int64_t sizes[] = {i + 1, round};
        aclTensor* tensor =
            aclCreateTensor(sizes, 2, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr);
        int64_t* read = nullptr;
        uint64_t count = 0;
        if (aclGetViewShape(tensor, &read, &count) != ACL_SUCCESS || read[0] != i + 1 || read[1] != round)
          ++failures;
        delete[] read;
        if (aclDestroyTensor(tensor) != ACL_SUCCESS) ++failures;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace anynpu::aclnn
