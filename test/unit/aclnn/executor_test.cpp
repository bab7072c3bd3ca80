#include <thread>

#include "aclnnop/aclnn_add.h"
#include "aclnnop/aclnn_gelu.h"
#include "aclnnop/aclnn_layer_norm.h"
#include "aclnnop/aclnn_mul.h"
#include "unit/aclnn/aclnn_test.h"

namespace anynpu::aclnn {
namespace {

class AclnnExecutor : public AclnnTest {
 protected:
  static aclOpExecutor* prepared(const aclTensor* self, const aclTensor* other, aclTensor* out) {
    uint64_t size = 1;
    aclOpExecutor* executor = nullptr;
    EXPECT_EQ(aclnnMulGetWorkspaceSize(self, other, out, &size, &executor), ACL_SUCCESS) << message();
    EXPECT_EQ(size, 0u);
    return executor;
  }
};

TEST_F(AclnnExecutor, RunsOnceUnlessRepeatable) {
  TestTensor x(DType::kF32, {2}, {2, 3}), out(DType::kF32, {2});
  aclOpExecutor* executor = prepared(x, x, out);
  ASSERT_EQ(aclnnMul(nullptr, 0, executor, nullptr), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_values(out, {4, 9});
  expect_failure(aclnnMul(nullptr, 0, executor, nullptr), ACLNN_ERR_PARAM_INVALID, "it was destroyed");
  expect_failure(aclDestroyAclOpExecutor(executor), ACLNN_ERR_PARAM_INVALID, "executor");

  executor = prepared(x, out, out);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(executor), ACL_SUCCESS) << message();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(aclnnMul(nullptr, 0, executor, nullptr), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_values(out, {32, 243});
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), ACL_SUCCESS) << message();
  expect_failure(aclDestroyAclOpExecutor(executor), ACLNN_ERR_PARAM_INVALID, "it was destroyed");
  expect_failure(aclSetAclOpExecutorRepeatable(nullptr), ACLNN_ERR_PARAM_NULLPTR,
                 "executor is null; it must be an executor");
}

TEST_F(AclnnExecutor, IsOfOneFunction) {
  TestTensor x(DType::kF32, {1}, {2}), out(DType::kF32, {1});
  aclOpExecutor* executor = prepared(x, x, out);
  expect_failure(aclnnGelu(nullptr, 0, executor, nullptr), ACLNN_ERR_PARAM_INVALID,
                 "executor is of aclnnMul, not of aclnnGelu");
  expect_failure(aclnnMul(nullptr, 0, reinterpret_cast<aclOpExecutor*>(static_cast<aclTensor*>(x)), nullptr),
                 ACLNN_ERR_PARAM_INVALID, "is a tensor, not an executor");
  expect_failure(aclnnMul(nullptr, 0, nullptr, nullptr), ACLNN_ERR_PARAM_NULLPTR, "executor is null");
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), ACL_SUCCESS) << "one that never ran";
}

TEST_F(AclnnExecutor, OutlivesTheTensorsItWasMadeWith) {
  TestTensor x(DType::kF32, {2}, {2, 3}), out(DType::kF32, {2});
  const int64_t sizes[] = {2};
  aclTensor* same = aclCreateTensor(sizes, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, x.memory());
  aclOpExecutor* executor = prepared(x, same, out);
  EXPECT_EQ(aclDestroyTensor(same), ACL_SUCCESS);
  ASSERT_EQ(aclnnMul(nullptr, 0, executor, nullptr), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_values(out, {4, 9});
}

TEST_F(AclnnExecutor, TakesNewAddresses) {
  TestTensor x(DType::kF32, {2}, {2, 3}), y(DType::kF32, {2}, {5, 7}), out(DType::kF32, {2}),
      other_out(DType::kF32, {2});
  aclOpExecutor* executor = prepared(x, y, out);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(executor), ACL_SUCCESS);
  ASSERT_EQ(aclSetInputTensorAddr(executor, 1, y, x.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclSetOutputTensorAddr(executor, 0, out, other_out.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclnnMul(nullptr, 0, executor, nullptr), ACL_SUCCESS) << message();
  ASSERT_EQ(aclSetTensorAddr(executor, 0, x, y.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclSetTensorAddr(executor, 2, out, out.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclnnMul(nullptr, 0, executor, nullptr), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_values(other_out, {4, 9});
  expect_values(out, {10, 21});

  expect_failure(aclSetInputTensorAddr(executor, 2, x, x.memory()), ACLNN_ERR_PARAM_INVALID,
                 "index is 2, but aclnnMul has 2 such tensors");
  expect_failure(aclSetTensorAddr(executor, 1, x, x.memory()), ACLNN_ERR_PARAM_INVALID,
                 "is not what aclnnMul got as other");
  expect_failure(aclSetTensorAddr(executor, 0, x, nullptr), ACLNN_ERR_PARAM_NULLPTR, "addr is null");
  expect_failure(aclSetTensorAddr(executor, 0, nullptr, x.memory()), ACLNN_ERR_PARAM_NULLPTR,
                 "tensor is null");
  int on_host[2];
  ASSERT_EQ(aclSetTensorAddr(executor, 0, x, &on_host[0]), ACL_SUCCESS);
  expect_failure(aclnnMul(nullptr, 0, executor, nullptr), ACLNN_ERR_PARAM_INVALID,
                 "which is no device memory");
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), ACL_SUCCESS);
}

TEST_F(AclnnExecutor, AddressesMayComeLater) {
  TestTensor x(DType::kF32, {2}, {2, 3}), out(DType::kF32, {2});
  const int64_t sizes[] = {2}, storage[] = {3};
  aclTensor* later = aclCreateTensor(sizes, 1, ACL_FLOAT, nullptr, 1, ACL_FORMAT_ND, storage, 1, nullptr);
  aclOpExecutor* executor = prepared(x, later, out);
  expect_failure(aclnnMul(nullptr, 0, executor, nullptr), ACLNN_ERR_PARAM_NULLPTR,
                 "other has elements, but no address");
  TestTensor memory(DType::kF32, {3}, {9, 5, 7});
  ASSERT_EQ(aclSetInputTensorAddr(executor, 1, later, memory.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclnnMul(nullptr, 0, executor, nullptr), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_values(out, {10, 21});
  EXPECT_EQ(aclDestroyTensor(later), ACL_SUCCESS);
}

TEST_F(AclnnExecutor, NoAddressNeedsToBeKnown) {
  const int64_t sizes[] = {2}, same[] = {2, 1};
  aclTensor* x = aclCreateTensor(sizes, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_ND, nullptr, 0, nullptr);
  aclTensor* out = aclCreateTensor(same, 1, ACL_FLOAT, nullptr, 0, ACL_FORMAT_NCHW, nullptr, 0, nullptr);
  TestTensor memory(DType::kF32, {3}, {2, 3, 4});
  aclOpExecutor* executor = prepared(x, x, out);
  ASSERT_EQ(aclSetTensorAddr(executor, 0, x, memory.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclSetTensorAddr(executor, 1, x, memory.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclSetTensorAddr(executor, 2, out, static_cast<float*>(memory.memory()) + 1), ACL_SUCCESS);
  expect_failure(aclnnMul(nullptr, 0, executor, nullptr), ACLNN_ERR_PARAM_INVALID, "shares memory with self");
  ASSERT_EQ(aclSetTensorAddr(executor, 2, out, memory.memory()), ACL_SUCCESS) << message();
  ASSERT_EQ(aclnnMul(nullptr, 0, executor, nullptr), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  expect_values(memory, {4, 9, 4});
  EXPECT_EQ(aclDestroyTensor(x), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyTensor(out), ACL_SUCCESS);
}

TEST_F(AclnnExecutor, WorkspacesAreAsLargeAsSaid) {
  TestTensor x(DType::kF32, {2, 2, 3}, Layout{{6, 1, 2}}), out(DType::kF32, {2, 2, 3});
  x.set({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const int64_t normalized[] = {2, 3};
  aclIntArray* shape = aclCreateIntArray(normalized, 2);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  ASSERT_EQ(aclnnLayerNormGetWorkspaceSize(x, shape, nullptr, nullptr, 0.0, out, nullptr, nullptr, &size,
                                           &executor),
            ACL_SUCCESS)
      << message();
  EXPECT_EQ(size, 64u * 3) << "x in contiguous memory, mean, and factor";
  void* workspace = nullptr;
  ASSERT_EQ(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
  expect_failure(aclnnLayerNorm(workspace, size - 1, executor, nullptr), ACLNN_ERR_PARAM_INVALID,
                 "workspaceSize is 191, but aclnnLayerNormGetWorkspaceSize asked for 192");
  expect_failure(aclnnLayerNorm(nullptr, size, executor, nullptr), ACLNN_ERR_PARAM_NULLPTR,
                 "workspace is null; 192 bytes");
  ASSERT_EQ(aclnnLayerNorm(workspace, size, executor, nullptr), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  std::vector<double> expected;
  for (int i = 0; i < 12; ++i) expected.push_back((i % 6 - 2.5) / std::sqrt(35.0 / 12));
  expect_values(out, expected, 1e-6);
  EXPECT_EQ(aclrtFree(workspace), ACL_SUCCESS);
  EXPECT_EQ(aclDestroyIntArray(shape), ACL_SUCCESS);
}

TEST_F(AclnnExecutor, RunsInTheOrderOfItsStream) {
  aclrtStream stream = make_stream();
  TestTensor x(DType::kI64, {1}, {1});
  const TestScalar two(int64_t{2}), one(int64_t{1});
  {
    Gate gate(stream);
    for (int i = 0; i < 3; ++i) {
      uint64_t size = 0;
      aclOpExecutor* executor = nullptr;
      ASSERT_EQ(aclnnInplaceMulsGetWorkspaceSize(x, two, &size, &executor), ACL_SUCCESS);
      ASSERT_EQ(aclnnInplaceMuls(nullptr, 0, executor, stream), ACL_SUCCESS);
      ASSERT_EQ(aclnnInplaceAddsGetWorkspaceSize(x, one, one, &size, &executor), ACL_SUCCESS);
      ASSERT_EQ(aclnnInplaceAdds(nullptr, 0, executor, stream), ACL_SUCCESS);
    }
  }
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  expect_values(x, {15});
  aclOpExecutor* executor = prepared(x, x, x);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  expect_failure(aclnnMul(nullptr, 0, executor, stream), ACLNN_ERR_PARAM_INVALID, "stream");
  EXPECT_EQ(aclDestroyAclOpExecutor(executor), ACL_SUCCESS);
}

TEST_F(AclnnExecutor, ThreadsCallOperators) {
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      if (aclrtSetDevice(0) != ACL_SUCCESS) ++failures;
      TestTensor x(DType::kF32, {100}, std::vector<double>(100, thread + 1)), out(DType::kF32, {100});
      for (int round = 0; round < 50; ++round) {
        if (call(ANYNPU_PHASES(aclnnMul), x, x, out) != ACL_SUCCESS) ++failures;
        if (out.values() != std::vector<double>(100, (thread + 1) * (thread + 1))) ++failures;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST_F(AclnnExecutor, OfManyThreadsRunsOnce) {
  TestTensor x(DType::kF32, {2}, {2, 3});
  for (int round = 0; round < 20; ++round) {
    aclOpExecutor* executor = prepared(x, x, x);
    std::atomic<int> successes = 0;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
      threads.emplace_back([&] {
        (void)aclrtSetDevice(0);
        if (aclnnMul(nullptr, 0, executor, nullptr) == ACL_SUCCESS) ++successes;
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(successes, 1);
    EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
    x.set({2, 3});
  }
}

}  // namespace
}  // namespace anynpu::aclnn
