#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

using AclDevice = AclTest;

uint32_t device_count() {
  uint32_t count = 0;
  EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
  return count;
}

TEST_F(AclDevice, OrdinalsAreChecked) {
  const auto beyond = static_cast<int32_t>(device_count());
  for (const int32_t device : {beyond, -1, 1 << 30}) {
    expect_failure(aclrtSetDevice(device), ACL_ERROR_RT_INVALID_DEVICEID,
                   "deviceId is " + std::to_string(device));
    expect_failure(aclrtResetDevice(device), ACL_ERROR_RT_INVALID_DEVICEID, "are accepted");
    aclrtContext context = nullptr;
    EXPECT_EQ(aclrtCreateContext(&context, device), ACL_ERROR_RT_INVALID_DEVICEID);
    aclrtDeviceStatus status = ACL_RT_DEVICE_STATUS_END;
    EXPECT_EQ(aclrtQueryDeviceStatus(device, &status), ACL_ERROR_RT_INVALID_DEVICEID);
    (void)message();
  }
  expect_failure(aclrtGetDeviceCount(nullptr), ACL_ERROR_INVALID_PARAM, "count is null");
  aclrtDeviceStatus status = ACL_RT_DEVICE_STATUS_END;
  EXPECT_EQ(aclrtQueryDeviceStatus(0, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_RT_DEVICE_STATUS_NORMAL);
}

TEST_F(AclDevice, AThreadHasNoDeviceUntilItSetsOne) {
  std::thread([] {
    int32_t device = -1;
    void* memory = nullptr;
    aclrtStream stream = nullptr;
    aclrtContext context = nullptr;
    expect_failure(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL, "set no device");
    EXPECT_EQ(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtCreateStream(&stream), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtGetCurrentContext(&context), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtSynchronizeDevice(), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  }).join();
}

TEST_F(AclDevice, TheLastResetOfSeveralGivesEverythingBack) {
  EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);  // the fixture set it once
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, 4096, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  aclrtStream stream = make_stream();
  uint32_t flags = 9;
  int32_t active = 0;
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(aclrtGetPrimaryCtxState(0, &flags, &active), ACL_SUCCESS);
  EXPECT_EQ(flags, 0u);
  EXPECT_EQ(active, 1);
  EXPECT_EQ(aclrtMemset(memory, 4096, 1, 4096), ACL_SUCCESS) << "one use is left";
  std::atomic<bool> ran = false;
  Gate gate(stream);
  launch(stream, [&] { ran = true; });
  gate.open();
  EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  EXPECT_TRUE(ran) << "the last reset waits for the work";
  EXPECT_EQ(aclrtGetPrimaryCtxState(0, nullptr, &active), ACL_SUCCESS);
  EXPECT_EQ(active, 0);
  expect_failure(aclrtResetDevice(0), ACL_ERROR_RT_CONTEXT_NULL, "device 0 is not set");
  expect_failure(aclrtSynchronizeStream(stream), ACL_ERROR_RT_CONTEXT_NULL, "reset");
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  expect_failure(aclrtSynchronizeStream(stream), ACL_ERROR_RT_INVALID_HANDLE, "destroyed");
  expect_failure(aclrtMemset(memory, 4096, 1, 4096), ACL_ERROR_RT_PARAM_INVALID, "no live allocation");
}

TEST_F(AclDevice, ForcedResetTakesAllUsesBack) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS);
  expect_failure(aclrtResetDevice(0), ACL_ERROR_RT_CONTEXT_NULL, "not set");
}

TEST_F(AclDevice, ResetReturnsTheErrorOfTheWorkItWaitedFor) {
  aclrtStream stream = make_stream();
  launch(stream, [] { throw std::runtime_error("the function failed"); });
  expect_failure(aclrtResetDeviceForce(0), ACL_ERROR_FAILURE, "the function failed");
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  expect_failure(aclrtDestroyStream(stream), ACL_ERROR_RT_INVALID_HANDLE, "destroyed");
}

TEST_F(AclDevice, ThreadsOfADeviceShareItsDefaultContext) {
  aclrtContext mine = nullptr, other = nullptr;
  ASSERT_EQ(aclrtGetCurrentContext(&mine), ACL_SUCCESS);
  std::thread([&] {
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetCurrentContext(&other), ACL_SUCCESS);
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  }).join();
  EXPECT_EQ(mine, other);
  expect_failure(aclrtDestroyContext(mine), ACL_ERROR_INVALID_PARAM, "aclrtResetDevice");
}

TEST_F(AclDevice, CreatedContextsHaveTheirOwnStreams) {
  aclrtContext first = nullptr, created = nullptr, current = nullptr;
  ASSERT_EQ(aclrtGetCurrentContext(&first), ACL_SUCCESS);
  aclrtStream of_first = make_stream();
  ASSERT_EQ(aclrtCreateContext(&created, 0), ACL_SUCCESS);
  ASSERT_EQ(aclrtGetCurrentContext(&current), ACL_SUCCESS);
  EXPECT_EQ(current, created) << "creating makes it current";
  expect_failure(aclrtSynchronizeStream(of_first), ACL_ERROR_RT_STREAM_CONTEXT, "another context");
  aclrtStream of_created = make_stream();
  std::atomic<bool> ran = false;
  launch(of_created, [&] { ran = true; });
  EXPECT_EQ(aclrtSetCurrentContext(first), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(of_first), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyContext(created), ACL_SUCCESS);
  EXPECT_TRUE(ran) << "destroying waits for the work";
  expect_failure(aclrtDestroyContext(created), ACL_ERROR_RT_INVALID_HANDLE, "destroyed");
  expect_failure(aclrtSetCurrentContext(created), ACL_ERROR_RT_INVALID_HANDLE, "destroyed");
  expect_failure(aclrtDestroyStream(of_created), ACL_ERROR_RT_INVALID_HANDLE, "its context was");
  EXPECT_EQ(aclrtDestroyStream(of_first), ACL_SUCCESS);
}

TEST_F(AclDevice, DestroyingTheCurrentContextLeavesNone) {
  aclrtContext created = nullptr;
  ASSERT_EQ(aclrtCreateContext(&created, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyContext(created), ACL_SUCCESS);
  int32_t device = 0;
  expect_failure(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL, "was destroyed");
}

TEST_F(AclDevice, FiguresAreThoseOfTheHost) {
  int64_t cores = 0, vector_cores = 0, bytes = 0;
  EXPECT_EQ(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_AICORE_CORE_NUM, &cores), ACL_SUCCESS);
  EXPECT_EQ(cores, std::thread::hardware_concurrency());
  EXPECT_EQ(aclGetDeviceCapability(0, ACL_DEVICE_INFO_VECTOR_CORE_NUM, &vector_cores), ACL_SUCCESS);
  EXPECT_EQ(vector_cores, cores);
  int64_t cache = -1, cache_capability = -2;
  EXPECT_EQ(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_L2_CACHE_SIZE, &cache), ACL_SUCCESS);
  EXPECT_EQ(aclGetDeviceCapability(0, ACL_DEVICE_INFO_L2_SIZE, &cache_capability), ACL_SUCCESS);
  EXPECT_EQ(cache, std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE)));
  EXPECT_EQ(cache_capability, cache);
  expect_failure(aclGetDeviceCapability(0, static_cast<aclDeviceInfo>(77), &cache),
                 ACL_ERROR_FEATURE_UNSUPPORTED, "deviceInfo is 77");
  EXPECT_EQ(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE, &bytes), ACL_SUCCESS);
  size_t free = 0, total = 0;
  EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
  EXPECT_EQ(static_cast<size_t>(bytes), total);
  EXPECT_LE(free, total);
  expect_failure(aclrtGetMemInfo(ACL_DDR_MEM, &free, &total), ACL_ERROR_FEATURE_UNSUPPORTED, "ACL_HBM_MEM");
  expect_failure(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_WARP_SIZE, &bytes), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "attr is 202");
  int32_t pid = 0, logic = -1;
  EXPECT_EQ(aclrtDeviceGetBareTgid(&pid), ACL_SUCCESS);
  EXPECT_EQ(pid, getpid());
  EXPECT_EQ(aclrtGetLogicDevIdByUserDevId(0, &logic), ACL_SUCCESS);
  EXPECT_EQ(logic, 0);
}

TEST_F(AclDevice, UuidsTellDevicesApartAndStay) {
  aclrtUuid first = {}, again = {}, other = {};
  EXPECT_EQ(aclrtDeviceGetUuid(0, &first), ACL_SUCCESS);
  EXPECT_EQ(aclrtDeviceGetUuid(0, &again), ACL_SUCCESS);
  EXPECT_EQ(std::memcmp(&first, &again, sizeof(first)), 0);
  if (device_count() < 2) GTEST_SKIP() << "needs two devices";
  EXPECT_EQ(aclrtDeviceGetUuid(1, &other), ACL_SUCCESS);
  EXPECT_NE(std::memcmp(&first, &other, sizeof(first)), 0);
}

TEST_F(AclDevice, SynchronizingADeviceWaitsForAllItsStreams) {
  aclrtStream held = make_stream(), other = make_stream();
  std::atomic<int> done = 0;
  Gate gate(held);
  launch(held, [&] { ++done; });
  launch(other, [&] { ++done; });
  expect_failure(aclrtSynchronizeDeviceWithTimeout(5), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "timeout = 5");
  expect_failure(aclrtSynchronizeDeviceWithTimeout(-2), ACL_ERROR_INVALID_PARAM, "timeout is -2");
  gate.open();
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(aclrtSynchronizeDeviceWithTimeout(-1), ACL_SUCCESS);
}

TEST_F(AclDevice, AbortingADeviceDropsItsWork) {
  aclrtStream stream = make_stream();
  Gate gate(stream);
  gate.wait_until_running();
  static std::atomic<bool> ran = false;
  ASSERT_EQ(aclrtLaunchHostFunc(stream, [](void*) { ran = true; }, nullptr), ACL_SUCCESS);
  expect_failure(aclrtDeviceTaskAbort(0, 5), ACL_ERROR_RT_WAIT_TIMEOUT, "timeout = 5");
  gate.open();
  EXPECT_EQ(aclrtDeviceTaskAbort(0, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_DEVICE_TASK_ABORT);
  EXPECT_FALSE(ran);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << "the stream stays usable";
}

/// One thread for each device, all doing everything at once.
TEST_F(AclDevice, SurvivesAThreadOnEachOfManyDevices) {
  const int devices = static_cast<int>(device_count());
  constexpr int kThreads = 8, kRounds = 40, kBytes = 1000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([=] {
      ASSERT_EQ(aclrtSetDevice(t % devices), ACL_SUCCESS);
      for (int round = 0; round < kRounds; ++round) {
        aclrtStream producer = make_stream(), consumer = make_stream();
        aclrtEvent ready = make_event();
        void *memory = nullptr, *pinned = nullptr;
        ASSERT_EQ(aclrtMalloc(&memory, kBytes, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
        ASSERT_EQ(aclrtMallocHost(&pinned, kBytes), ACL_SUCCESS);
        const int value = t * kRounds + round;
        EXPECT_EQ(aclrtMemsetAsync(memory, kBytes, value, kBytes, producer), ACL_SUCCESS);
        EXPECT_EQ(aclrtRecordEvent(ready, producer), ACL_SUCCESS);
        EXPECT_EQ(aclrtStreamWaitEvent(consumer, ready), ACL_SUCCESS);
        EXPECT_EQ(aclrtMemcpyAsync(pinned, kBytes, memory, kBytes, ACL_MEMCPY_DEVICE_TO_HOST, consumer),
                  ACL_SUCCESS);
        std::atomic<int> seen = -1;
        launch(consumer, [&] { seen = static_cast<unsigned char*>(pinned)[kBytes - 1]; });
        EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS);
        EXPECT_EQ(seen, value % 256);
        EXPECT_EQ(aclrtDestroyEvent(ready), ACL_SUCCESS);
        EXPECT_EQ(aclrtDestroyStream(producer), ACL_SUCCESS);
        EXPECT_EQ(aclrtDestroyStream(consumer), ACL_SUCCESS);
        EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
        EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
      }
      EXPECT_EQ(aclrtResetDevice(t % devices), ACL_SUCCESS);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
