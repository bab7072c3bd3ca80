// Tasks that ask for the end of what they are a part of are refused, and nothing is done.

#include <pthread.h>

#include <chrono>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

using AclOwnWork = AclTest;

constexpr int kLong = 60'000;  // ms: a limit that only a hang reaches

/// Runs `function` as a host function of `stream`, with device 0 set, and waits for it.
void run_in_task(aclrtStream stream, const std::function<void()>& function) {
  auto body = [](void* argument) {
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    (*static_cast<const std::function<void()>*>(argument))();
  };
  ASSERT_EQ(aclrtLaunchHostFunc(stream, body, const_cast<std::function<void()>*>(&function)), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_SUCCESS) << aclGetRecentErrMsg();
}

TEST_F(AclOwnWork, ItsStreamEventsAndDeviceAreNotAwaited) {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event();
  run_in_task(stream, [&] {
    ASSERT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
    for (const auto& wait : std::vector<std::function<aclError()>>{
             [&] { return aclrtSynchronizeStream(stream); },
             [&] { return aclrtSynchronizeEvent(event); },
             [&] { return aclrtSynchronizeEventWithTimeout(event, kLong); },
         })
      expect_failure(wait(), ACL_ERROR_RT_PARAM_INVALID, "waits for its own stream, and so for itself");
    expect_failure(aclrtDeviceTaskAbort(0, 0), ACL_ERROR_RT_PARAM_INVALID, "nothing was done");
    expect_failure(aclrtSynchronizeDevice(), ACL_ERROR_RT_PARAM_INVALID, "nothing was done");
  });
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
}

TEST_F(AclOwnWork, PageableCopiesOnItsStreamAreRefusedBeforeTheyAreEnqueued) {
  aclrtStream stream = make_stream();
  int host = 7, seen = 0;
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, sizeof(host), ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemset(memory, sizeof(host), 0, sizeof(host)), ACL_SUCCESS);
  run_in_task(stream, [&] {
    expect_failure(
        aclrtMemcpyAsync(memory, sizeof(host), &host, sizeof(host), ACL_MEMCPY_HOST_TO_DEVICE, stream),
        ACL_ERROR_RT_PARAM_INVALID, "memory that is not pinned");
    expect_failure(aclrtMemsetAsync(&host, sizeof(host), 0, sizeof(host), stream), ACL_ERROR_RT_PARAM_INVALID,
                   "memory that is not pinned");
  });
  ASSERT_EQ(aclrtMemcpy(&seen, sizeof(seen), memory, sizeof(seen), ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(seen, 0);
  EXPECT_EQ(host, 7);
}

TEST_F(AclOwnWork, ItsDeviceContextAndProcessAreNotEnded) {
  aclrtContext context = nullptr;
  ASSERT_EQ(aclrtCreateContext(&context, 0), ACL_SUCCESS);
  aclrtStream in_context = make_stream();
  run_in_task(in_context, [&] {
    expect_failure(aclrtDestroyContext(context), ACL_ERROR_RT_PARAM_INVALID, "waits for its own stream");
    ASSERT_EQ(aclrtSetCurrentContext(context), ACL_SUCCESS);
  });
  ASSERT_EQ(aclrtDestroyContext(context), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);

  constexpr size_t kSize = 1 << 20;
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, kSize, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_TRUE(aclInit(nullptr) == ACL_SUCCESS || aclInit(nullptr) == ACL_ERROR_REPEAT_INITIALIZE);
  aclrtStream stream = make_stream();
  Gate gate(stream);
  launch(stream, [] {
    expect_failure(aclrtResetDeviceForce(0), ACL_ERROR_RT_PARAM_INVALID, "nothing was done");
    expect_failure(aclFinalize(), ACL_ERROR_RT_PARAM_INVALID, "nothing was done");
  });
  ASSERT_EQ(aclrtMemsetAsync(memory, kSize, 9, kSize, stream), ACL_SUCCESS);  // what a reset would free
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_SUCCESS) << message();
  uint8_t last = 0;
  ASSERT_EQ(aclrtMemcpy(&last, 1, static_cast<char*>(memory) + kSize - 1, 1, ACL_MEMCPY_DEVICE_TO_HOST),
            ACL_SUCCESS);
  EXPECT_EQ(last, 9);
}

TEST_F(AclOwnWork, ACallbackThatHoldsItsStreamIsAPartOfIt) {
  static aclrtStream stream = nullptr;
  stream = make_stream();
  ASSERT_EQ(aclrtSubscribeReport(pthread_self(), stream), ACL_SUCCESS);
  const aclrtCallback wait = [](void*) {
    expect_failure(aclrtSynchronizeStream(stream), ACL_ERROR_RT_PARAM_INVALID, "waits for its own stream");
  };
  ASSERT_EQ(aclrtLaunchCallback(wait, nullptr, ACL_CALLBACK_BLOCK, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtProcessReport(kLong), ACL_SUCCESS);
  const aclrtCallback free = [](void*) { EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS); };
  ASSERT_EQ(aclrtLaunchCallback(free, nullptr, ACL_CALLBACK_NO_BLOCK, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtProcessReport(kLong), ACL_SUCCESS);
}

TEST_F(AclOwnWork, ATaskMayInitialiseWhileTheProcessFinalises) {
  (void)aclInit(nullptr);
  std::atomic<aclError> status = ACL_ERROR_FAILURE;
  Gate gate(nullptr);
  launch(nullptr, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until the finalisation waits
    status = aclInit(nullptr);
  });
  gate.open();
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_SUCCESS);
}

}  // namespace
