// What an attack on the interface found: each test is one way in which calls once met each other badly.

#include <pthread.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

using namespace std::chrono_literals;

constexpr int kLong = 60'000;  // ms: a limit that only a hang reaches

class AclAttack : public AclTest {
 protected:
  static void* device_memory(size_t size) {
    void* memory = nullptr;
    EXPECT_EQ(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS) << message();
    return memory;
  }
  static void expect_drained(aclrtStream stream) {
    EXPECT_NE(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    aclrtStreamStatus status = {};
    EXPECT_EQ(aclrtStreamQuery(stream, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_STREAM_STATUS_COMPLETE);
  }
};

TEST_F(AclAttack, WorkOfOneDeviceMeetsMemoryOfAnotherThatIsFreed) {
  constexpr size_t kSize = 1 << 16;
  void* source = device_memory(kSize);
  ASSERT_EQ(aclrtMemset(source, kSize, 5, kSize), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
  ASSERT_EQ(aclrtDeviceEnablePeerAccess(0, 0), ACL_SUCCESS);
  void* target = device_memory(kSize);
  aclrtStream stream = make_stream();
  {
    Gate gate(stream);
    ASSERT_EQ(aclrtMemcpyAsync(target, kSize, source, kSize, ACL_MEMCPY_DEVICE_TO_DEVICE, stream),
              ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(source), ACL_SUCCESS) << message();
  }
  ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << message();
  std::vector<char> host(kSize);
  ASSERT_EQ(aclrtMemcpy(host.data(), kSize, target, kSize, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(host, std::vector<char>(kSize, 5));
  EXPECT_EQ(aclrtResetDeviceForce(1), ACL_SUCCESS);
}

TEST_F(AclAttack, AStreamGoesOnWhenItsBlockingCallbackIsDropped) {
  const auto self = static_cast<uint64_t>(pthread_self());
  const aclrtCallback nothing = [](void*) {};
  for (const bool stops : {false, true}) {
    aclrtStream stream = make_stream();
    ASSERT_EQ(aclrtSubscribeReport(self, stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetStreamFailureMode(stream, stops ? ACL_STOP_ON_FAILURE : ACL_CONTINUE_ON_FAILURE),
              ACL_SUCCESS);
    {
      Gate gate(stream);
      gate.wait_until_running();
      ASSERT_EQ(aclrtLaunchHostFunc(stream, [](void*) {}, nullptr), ACL_SUCCESS);
      const auto launch_callback = [&] {
        EXPECT_EQ(aclrtLaunchCallback(nothing, nullptr, ACL_CALLBACK_BLOCK, stream), ACL_SUCCESS);
      };
      if (!stops) launch_callback();
      ASSERT_EQ(aclrtStreamAbort(stream), ACL_SUCCESS);
      if (stops) launch_callback();
    }
    expect_drained(stream);
    (void)aclGetRecentErrMsg();
    EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  }
}

size_t service_threads() {
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    count += name == "npu-service";
  }
  return count;
}

TEST_F(AclAttack, WorkThatCannotBlockNeedsNoThreadOfItsOwn) {
  constexpr int kStreams = 300;
  const size_t before = service_threads();
  aclrtStream first = make_stream();
  aclrtEvent event = make_event();
  void* memory = device_memory(kStreams);
  {
    Gate gate(first);
    ASSERT_EQ(aclrtRecordEvent(event, first), ACL_SUCCESS);
    for (int i = 0; i < kStreams; ++i) {
      aclrtStream stream = make_stream();
      ASSERT_EQ(aclrtStreamWaitEvent(stream, event), ACL_SUCCESS);
      ASSERT_EQ(aclrtMemsetAsync(static_cast<char*>(memory) + i, 1, 1, 1, stream), ACL_SUCCESS);
    }
  }
  ASSERT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
  EXPECT_LE(service_threads(), before + 2);  // one in the gate, one for the rest
}

/// In processes of their own, where the system can be made to give no thread.
class AclExitWithoutThreads : public AclAttack {
 protected:
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  void TearDown() override {}

  static void require(bool condition, int line) {
    if (condition) return;
    fprintf(stderr, "line %d: %s\n", line, message().c_str());
    std::abort();
  }
  static void give_no_thread(bool give_none) {
    static const size_t usual = [] {
      pthread_attr_t attributes;
      size_t size = 0;
      pthread_getattr_default_np(&attributes);
      pthread_attr_getstacksize(&attributes, &size);
      return size;
    }();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, give_none ? size_t{1} << 46 : usual);
    require(pthread_setattr_default_np(&attributes) == 0, __LINE__);
  }
};

// The sanitizers make threads of their own sizes.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(AclExitWithoutThreads, WaitersRunTheWorkAndLaterThreadsTheRest) {
  const auto body = [] {
    require(aclrtSetDevice(0) == ACL_SUCCESS, __LINE__);
    aclrtStream stream = make_stream(), other = make_stream();
    aclrtEvent event = make_event();
    give_no_thread(true);
    std::atomic<int> ran = 0;
    const aclrtHostFunc count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    require(aclrtLaunchHostFunc(stream, count, &ran) == ACL_SUCCESS, __LINE__);
    require(aclrtRecordEvent(event, stream) == ACL_SUCCESS, __LINE__);
    require(aclrtStreamWaitEvent(other, event) == ACL_SUCCESS, __LINE__);
    require(aclrtLaunchHostFunc(other, count, &ran) == ACL_SUCCESS, __LINE__);
    require(aclrtSynchronizeStreamWithTimeout(other, kLong) == ACL_SUCCESS, __LINE__);
    require(ran == 2, __LINE__);
    require(aclrtLaunchHostFunc(stream, count, &ran) == ACL_SUCCESS, __LINE__);
    give_no_thread(false);
    require(aclrtSynchronizeStreamWithTimeout(stream, kLong) == ACL_SUCCESS, __LINE__);
    require(ran == 3, __LINE__);
    exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST_F(AclExitWithoutThreads, ValuesAndLimitsAreWatchedByWhoeverWaits) {
  const auto body = [] {
    require(aclrtSetDevice(0) == ACL_SUCCESS, __LINE__);
    aclrtStream stream = make_stream(), other = make_stream();
    aclrtEvent event = make_event();
    auto* value = static_cast<uint64_t*>(device_memory(sizeof(uint64_t)));
    require(aclrtMemset(value, 8, 0, 8) == ACL_SUCCESS, __LINE__);
    require(aclrtSetOpWaitTimeout(1) == ACL_SUCCESS, __LINE__);
    for (uint64_t round = 1; round < 3; ++round) {
      const aclError over = round == 1 ? ACL_ERROR_RT_WAIT_TIMEOUT : ACL_SUCCESS;
      give_no_thread(round == 1);
      require(aclrtValueWait(value, round, ACL_STREAM_WAIT_VALUE_EQ, stream) == ACL_SUCCESS, __LINE__);
      require(aclrtRecordEvent(event, stream) == ACL_SUCCESS, __LINE__);
      if (round == 1) require(aclrtStreamWaitEvent(other, event) == ACL_SUCCESS, __LINE__);
      require(aclrtSynchronizeStreamWithTimeout(stream, 5) == ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, __LINE__);
      require(aclrtSynchronizeStreamWithTimeout(other, kLong) == over, __LINE__);
      require(aclrtValueWrite(value, round, 0, other) == ACL_SUCCESS, __LINE__);
      require(aclrtSynchronizeStreamWithTimeout(stream, kLong) == ACL_SUCCESS, __LINE__);
    }
    exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}
#endif

// The address sanitizer does not understand how pthread_exit and cancellation unwind a thread.
#if !defined(__SANITIZE_ADDRESS__)
TEST_F(AclExitWithoutThreads, PthreadExitInAHostFunctionEndsTheTaskAlone) {
  const auto body = [] {
    require(aclrtSetDevice(0) == ACL_SUCCESS, __LINE__);
    aclrtStream stream = make_stream();
    std::atomic<bool> ran = false;
    require(
        aclrtLaunchHostFunc(stream, [](void*) { pthread_exit(nullptr); }, nullptr) == ACL_SUCCESS, __LINE__);
    require(
        aclrtLaunchHostFunc(
            stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &ran) == ACL_SUCCESS,
        __LINE__);
    require(aclrtSynchronizeStreamWithTimeout(stream, kLong) == ACL_SUCCESS, __LINE__);
    require(ran, __LINE__);
    exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST_F(AclExitWithoutThreads, ACancelledThreadLeavesItsWait) {
  const auto body = [] {
    require(aclrtSetDevice(0) == ACL_SUCCESS, __LINE__);
    aclrtStream stream = make_stream();
    Gate gate(stream);
    gate.wait_until_running();
    for (const bool reports : {false, true}) {
      std::latch waits(1);
      std::thread thread([&] {
        require(aclrtSetDevice(0) == ACL_SUCCESS, __LINE__);
        if (reports) require(aclrtSubscribeReport(pthread_self(), stream) == ACL_SUCCESS, __LINE__);
        waits.count_down();
        (void)(reports ? aclrtProcessReport(-1) : aclrtSynchronizeStream(stream));
      });
      waits.wait();
      require(pthread_cancel(thread.native_handle()) == 0, __LINE__);
      thread.join();
    }
    gate.open();
    require(aclrtSynchronizeStreamWithTimeout(stream, kLong) == ACL_SUCCESS, __LINE__);
    exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}
#endif

TEST_F(AclExitWithoutThreads, AllocationWaitsForMemoryFreedOnAnotherDevice) {
  const auto body = [] {
    setenv("ANYNPU_MEMORY", "64M", 1);
    require(aclrtSetDevice(0) == ACL_SUCCESS, __LINE__);
    aclrtStream stream = make_stream();
    void* memory = device_memory(60 << 20);
    require(aclrtLaunchHostFunc(
                stream, [](void*) { std::this_thread::sleep_for(300ms); }, nullptr) == ACL_SUCCESS,
            __LINE__);
    require(aclrtFree(memory) == ACL_SUCCESS, __LINE__);
    require(aclrtSetDevice(1) == ACL_SUCCESS, __LINE__);
    require(aclrtMalloc(&memory, 60 << 20, ACL_MEM_MALLOC_NORMAL_ONLY) == ACL_SUCCESS, __LINE__);
    exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST_F(AclExitWithoutThreads, FinalisingEndsEveryDeviceAndContext) {
  const auto body = [] {
    require(aclInit(nullptr) == ACL_SUCCESS, __LINE__);
    require(aclrtSetDevice(0) == ACL_SUCCESS, __LINE__);
    // A failure on one device leaves the others no less ended.
    require(aclrtLaunchHostFunc(
                nullptr, [](void*) { throw std::runtime_error("on purpose"); }, nullptr) == ACL_SUCCESS,
            __LINE__);
    require(aclrtSetDevice(1) == ACL_SUCCESS, __LINE__);
    void* memory = device_memory(1 << 20);
    aclrtContext context = nullptr;
    require(aclrtCreateContext(&context, 2) == ACL_SUCCESS, __LINE__);
    void* more = device_memory(1 << 20);
    aclrtStream stream = make_stream();
    require(aclFinalize() != ACL_SUCCESS, __LINE__);
    (void)message();
    int32_t active = 1;
    require(aclrtGetPrimaryCtxState(1, nullptr, &active) == ACL_SUCCESS && active == 0, __LINE__);
    require(aclrtFree(memory) == ACL_ERROR_RT_PARAM_INVALID, __LINE__);
    require(aclrtFree(more) == ACL_ERROR_RT_PARAM_INVALID, __LINE__);
    require(aclrtSetCurrentContext(context) == ACL_ERROR_RT_INVALID_HANDLE, __LINE__);
    require(aclrtDestroyStream(stream) == ACL_ERROR_RT_INVALID_HANDLE, __LINE__);
    require(aclInit(nullptr) == ACL_SUCCESS && aclrtSetDevice(1) == ACL_SUCCESS, __LINE__);
    require(device_memory(1 << 20) != nullptr && aclFinalize() == ACL_SUCCESS, __LINE__);
    exit(0);
  };
  EXPECT_EXIT(body(), testing::ExitedWithCode(0), "");
}

TEST_F(AclAttack, CopiesRaceWithTheEndOfTheirMemory) {
  constexpr size_t kSize = 4 << 20;
  std::vector<char> host(kSize, 1);
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    void* memory = device_memory(kSize);
    std::latch start(2);
    std::thread copier([&] {
      EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      aclrtStream stream = make_stream();
      start.arrive_and_wait();
      for (int i = 0; i < 4; ++i) {
        (void)aclrtMemcpy(memory, kSize, host.data(), kSize, ACL_MEMCPY_HOST_TO_DEVICE);
        (void)aclrtMemsetAsync(memory, kSize, 3, kSize, stream);
        (void)aclrtMemcpyAsync(memory, 64, host.data(), 64, ACL_MEMCPY_HOST_TO_DEVICE, stream);
      }
      (void)aclGetRecentErrMsg();
    });
    start.arrive_and_wait();
    EXPECT_EQ(round % 2 == 0 ? aclrtFree(memory) : aclrtResetDeviceForce(0), ACL_SUCCESS) << message();
    copier.join();
  }
}

TEST_F(AclAttack, APageableCopyThatWasDroppedSaysSo) {
  int host = 1;
  void* memory = device_memory(sizeof(host));
  ASSERT_EQ(aclrtMemset(memory, sizeof(host), 0, sizeof(host)), ACL_SUCCESS);
  aclrtStream stream = make_stream();
  Gate gate(stream);
  gate.wait_until_running();
  std::thread copier([&] {
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    expect_failure(
        aclrtMemcpyAsync(&host, sizeof(host), memory, sizeof(host), ACL_MEMCPY_DEVICE_TO_HOST, stream),
        ACL_ERROR_RT_STREAM_ABORT, "was dropped");
  });
  // Until the copy is enqueued there is nothing to drop: abort until it returns.
  std::atomic<bool> done = false;
  std::thread aborter([&] {
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    while (!done) {
      EXPECT_EQ(aclrtStreamAbort(stream), ACL_SUCCESS);
      std::this_thread::sleep_for(1ms);
    }
  });
  std::this_thread::sleep_for(20ms);
  gate.open();
  copier.join();
  done = true;
  aborter.join();
  EXPECT_EQ(host, 1);
  (void)aclrtSynchronizeStream(stream);
  (void)message();
}

TEST_F(AclAttack, RowsThatOverlapAreRefusedAndOthersCopied) {
  std::vector<char> image(4 * 16), seen(image.size());
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<char>(i);
  auto* memory = static_cast<char*>(device_memory(image.size()));
  const auto upload = [&] {
    ASSERT_EQ(aclrtMemcpy(memory, image.size(), image.data(), image.size(), ACL_MEMCPY_HOST_TO_DEVICE),
              ACL_SUCCESS);
  };
  upload();
  expect_failure(aclrtMemcpy2d(memory + 16, 16, memory, 16, 16, 3, ACL_MEMCPY_DEVICE_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "overlap");
  expect_failure(aclrtMemcpy2d(memory + 20, 16, memory, 16, 8, 3, ACL_MEMCPY_DEVICE_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "overlap");
  expect_failure(aclrtMemcpy2d(memory, 12, memory + 8, 16, 8, 3, ACL_MEMCPY_DEVICE_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "overlap");
  // The halves of the same rows share no byte.
  ASSERT_EQ(aclrtMemcpy2d(memory + 8, 16, memory, 16, 8, 4, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS)
      << message();
  ASSERT_EQ(aclrtMemcpy(seen.data(), seen.size(), memory, seen.size(), ACL_MEMCPY_DEVICE_TO_HOST),
            ACL_SUCCESS);
  for (size_t row = 0; row < 4; ++row) {
    EXPECT_EQ(memcmp(&seen[row * 16], &image[row * 16], 8), 0);
    EXPECT_EQ(memcmp(&seen[row * 16 + 8], &image[row * 16], 8), 0);
  }
}

TEST_F(AclAttack, AHundredThousandRowsAreOneTask) {
  constexpr size_t kRows = 100'000, kPitch = 3;
  std::vector<char> host(kRows, 7), seen(kRows * kPitch);
  void* memory = device_memory(seen.size());
  ASSERT_EQ(aclrtMemset(memory, seen.size(), 0, seen.size()), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy2d(memory, kPitch, host.data(), 1, 1, kRows, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpy(seen.data(), seen.size(), memory, seen.size(), ACL_MEMCPY_DEVICE_TO_HOST),
            ACL_SUCCESS);
  for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], i % kPitch == 0 ? 7 : 0) << i;
}

TEST_F(AclAttack, NothingIsMadeForANullOutput) {
  int32_t before = 0, after = 0;
  ASSERT_EQ(aclrtStreamGetId(make_stream(), &before), ACL_SUCCESS);
  expect_failure(aclrtCreateStream(nullptr), ACL_ERROR_INVALID_PARAM, "stream is null");
  expect_failure(aclrtCreateStreamWithConfig(nullptr, 0, 0), ACL_ERROR_INVALID_PARAM, "stream is null");
  ASSERT_EQ(aclrtStreamGetId(make_stream(), &after), ACL_SUCCESS);
  EXPECT_EQ(after, before + 1);
  expect_failure(aclrtCreateEvent(nullptr), ACL_ERROR_INVALID_PARAM, "event is null");
  expect_failure(aclrtCreateEventWithFlag(nullptr, ACL_EVENT_SYNC), ACL_ERROR_INVALID_PARAM, "event is null");
}

TEST_F(AclAttack, PrioritiesAndFlagsOutsideTheirRangeAreRefused) {
  aclrtStream stream = nullptr;
  expect_failure(aclrtCreateStreamWithConfig(&stream, 8, 0), ACL_ERROR_INVALID_PARAM, "priority is 8");
  expect_failure(aclrtCreateStreamWithConfig(&stream, 0, 1U << 31), ACL_ERROR_INVALID_PARAM,
                 "flag is 2147483648");
  EXPECT_EQ(aclrtCreateStreamWithConfig(&stream, 7, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC),
            ACL_SUCCESS);
}

TEST_F(AclAttack, NullAddressesHaveTheCodeOfNullArguments) {
  int host = 0;
  void* memory = device_memory(sizeof(host));
  expect_failure(aclrtMemcpy(nullptr, 4, &host, 4, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM,
                 "dst is null");
  expect_failure(aclrtMemcpy(memory, 4, nullptr, 4, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM,
                 "src is null");
  expect_failure(aclrtMemset(nullptr, 4, 0, 4), ACL_ERROR_INVALID_PARAM, "devPtr is null");
  EXPECT_EQ(aclrtMemset(nullptr, 4, 0, 0), ACL_SUCCESS);
}

TEST_F(AclAttack, AResetLeavesTheNextUsersSubscription) {
  Gate gate(nullptr);
  gate.wait_until_running();
  std::thread resetter([] { EXPECT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS); });
  // Once the reset has begun, the thread has no context of this device.
  aclrtContext context = nullptr;
  while (aclrtGetCurrentContext(&context) == ACL_SUCCESS) std::this_thread::yield();
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtSubscribeReport(pthread_self(), nullptr), ACL_SUCCESS) << message();
  gate.open();
  resetter.join();
  (void)message();
  bool ran = false;
  const aclrtCallback set = [](void* flag) { *static_cast<bool*>(flag) = true; };
  ASSERT_EQ(aclrtLaunchCallback(set, &ran, ACL_CALLBACK_NO_BLOCK, nullptr), ACL_SUCCESS) << message();
  ASSERT_EQ(aclrtProcessReport(kLong), ACL_SUCCESS) << message();
  EXPECT_TRUE(ran);
  EXPECT_EQ(aclrtUnSubscribeReport(pthread_self(), nullptr), ACL_SUCCESS);
}

TEST_F(AclAttack, OfTwoThreadsOneDestroysAContext) {
  aclrtContext context = nullptr;
  ASSERT_EQ(aclrtCreateContext(&context, 0), ACL_SUCCESS);
  std::atomic<int> destroyed = 0, refused = 0;
  {
    Gate gate(make_stream());
    gate.wait_until_running();
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        const aclError code = aclrtDestroyContext(context);
        ++(code == ACL_SUCCESS ? destroyed : refused);
        (void)message();
      });
    while (refused == 0) std::this_thread::yield();
    gate.open();
  }
  EXPECT_EQ(destroyed, 1);
  EXPECT_EQ(refused, 1);
}

TEST_F(AclAttack, AnEmptySettingsFileIsAccepted) {
  const auto file = std::filesystem::temp_directory_path() / ("anynpu-empty-" + std::to_string(getpid()));
  std::ofstream(file).close();
  const aclError code = aclInit(file.c_str());
  EXPECT_TRUE(code == ACL_SUCCESS || code == ACL_ERROR_REPEAT_INITIALIZE) << code << message();
  (void)message();
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS) << message();
  std::filesystem::remove(file);
}

}  // namespace
