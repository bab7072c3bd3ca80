// What happens when processes end or fork in the midst of it. Each body runs in a process of its own, started
// afresh: the exit handlers are what is tested.

#include <sys/syscall.h>

#include <cstring>
#include <latch>
#include <thread>

#include "abi_test.h"

namespace {

using namespace std::chrono_literals;

class AclExit : public AclTest {
 protected:
  void SetUp() override { testing::GTEST_FLAG(death_test_style) = "threadsafe"; }
  void TearDown() override {}
};

void require(bool condition) {
  if (!condition) std::abort();
}

void queue_work() {
  require(aclInit(nullptr) == ACL_SUCCESS && aclrtSetDevice(0) == ACL_SUCCESS);
  void* memory = nullptr;
  aclrtStream held = nullptr, busy = nullptr;
  require(aclrtMalloc(&memory, 1 << 22, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
  require(aclrtCreateStream(&held) == ACL_SUCCESS && aclrtCreateStream(&busy) == ACL_SUCCESS);
  const aclrtHostFunc sleep = [](void*) { std::this_thread::sleep_for(1h); };
  require(aclrtLaunchHostFunc(held, sleep, nullptr) == ACL_SUCCESS);
  for (int i = 0; i < 200; ++i)
    for (aclrtStream stream : {held, busy})
      require(aclrtMemsetAsync(memory, 1 << 22, i, 1 << 22, stream) == ACL_SUCCESS);
}

TEST_F(AclExit, WithWorkQueued) {
  EXPECT_EXIT(
      {
        queue_work();
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(AclExit, FromAThreadThatIsNotTheFirst) {
  EXPECT_EXIT(
      {
        std::thread([] {
          queue_work();
          std::exit(7);
        }).join();
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(AclExit, WhileDetachedThreadsUseAndAwaitTheDevice) {
  EXPECT_EXIT(
      {
        std::latch running(4);
        for (int t = 0; t < 4; ++t)
          std::thread([&running, t] {
            require(aclrtSetDevice(0) == ACL_SUCCESS);
            aclrtStream stream = nullptr;
            require(aclrtCreateStream(&stream) == ACL_SUCCESS);
            require(aclrtSubscribeReport(pthread_self(), stream) == ACL_SUCCESS);
            running.count_down();
            aclError status = ACL_SUCCESS;
            while (status == ACL_SUCCESS) {
              if (t == 0) status = aclrtProcessReport(-1);
              if (t == 1) status = aclrtSynchronizeDevice();
              if (t > 1) status = aclrtLaunchHostFunc(stream, [](void*) {}, nullptr);
            }
            require(status == ACL_ERROR_UNINITIALIZE);
            require(std::strstr(aclGetRecentErrMsg(), "shut down") != nullptr);
            std::this_thread::sleep_for(1h);
          }).detach();
        running.wait();
        std::this_thread::sleep_for(20ms);
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(AclExit, ByFinalisingInAnExitHandler) {
  EXPECT_EXIT(
      {
        std::atexit(
            [] { require(aclFinalize() == ACL_SUCCESS); });  // runs after the device's own, started later
        require(aclInit(nullptr) == ACL_SUCCESS && aclrtSetDevice(0) == ACL_SUCCESS);
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

/// 0 when every use of the device in this fork says that, and 1 + the number of the first that does not.
int misled_use_in_fork(aclrtStream stream, aclrtEvent event, aclrtContext context, void* memory) {
  static void* address = nullptr;
  static aclrtStream created = nullptr;
  static aclrtStreamStatus stream_status;
  static aclrtEventRecordedStatus event_status;
  static int32_t device = 0;
  const std::function<aclError()> uses[] = {
      [] { return aclrtSetDevice(0); },
      [] { return aclrtGetDevice(&device); },
      [] { return aclrtSynchronizeDevice(); },
      [] { return aclrtResetDevice(0); },
      [] { return aclrtMalloc(&address, 8, ACL_MEM_MALLOC_HUGE_FIRST); },
      [&] { return aclrtFree(memory); },
      [&] { return aclrtMemset(memory, 8, 0, 8); },
      [] { return aclrtCreateStream(&created); },
      [&] { return aclrtSynchronizeStream(stream); },
      [&] { return aclrtStreamQuery(stream, &stream_status); },
      [&] { return aclrtDestroyStream(stream); },
      [&] { return aclrtRecordEvent(event, stream); },
      [&] { return aclrtQueryEventStatus(event, &event_status); },
      [&] { return aclrtSynchronizeEvent(event); },
      [&] { return aclrtStreamWaitEvent(stream, event); },
      [&] { return aclrtSetCurrentContext(context); },
      [] { return aclrtProcessReport(-1); },
      [&] { return aclrtSubscribeReport(1, stream); },
  };
  for (int i = 0; const auto& use : uses) {
    ++i;
    if (use() != ACL_ERROR_RT_DEV_SETUP_ERROR) return i;
    if (std::strstr(aclGetRecentErrMsg(), "'spawn' start method") == nullptr) return 100 + i;
  }
  return 0;
}

TEST_F(AclExit, AForkOfAProcessThatUsesTheDeviceIsTold) {
  EXPECT_EXIT(
      {
        require(aclrtSetDevice(0) == ACL_SUCCESS);
        void* memory = nullptr;
        aclrtStream stream = nullptr;
        aclrtEvent event = nullptr;
        aclrtContext context = nullptr;
        require(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
        require(aclrtCreateStream(&stream) == ACL_SUCCESS && aclrtCreateEvent(&event) == ACL_SUCCESS);
        require(aclrtGetCurrentContext(&context) == ACL_SUCCESS);
        require(aclrtLaunchHostFunc(
                    stream, [](void*) { std::this_thread::sleep_for(1h); }, nullptr) == ACL_SUCCESS);
        require(aclrtRecordEvent(event, stream) == ACL_SUCCESS);
        const int status = status_of_fork([&] {
          const int misled = misled_use_in_fork(stream, event, context, memory);
          uint32_t count = 0;
          if (misled == 0 && aclrtGetDeviceCount(&count) != ACL_SUCCESS) return 99;
          return misled;
        });
        std::exit(status == 0 ? 7 : status);
      },
      testing::ExitedWithCode(7), "");
}

#ifndef __SANITIZE_THREAD__  // whose allocator hangs in forks of processes with threads
TEST_F(AclExit, AForkWhileOtherThreadsCallDoesNotHang) {
  EXPECT_EXIT(
      {
        require(aclrtSetDevice(0) == ACL_SUCCESS);
        for (int t = 0; t < 3; ++t)
          std::thread([] {
            while (true) {
              aclDataBuffer* buffer = aclCreateDataBuffer(nullptr, 1);
              (void)aclDestroyDataBuffer(buffer);
            }
          }).detach();
        for (int round = 0; round < 50; ++round) {
          const int status = status_of_fork([] {
            aclDataBuffer* buffer = aclCreateDataBuffer(nullptr, 1);
            return aclDestroyDataBuffer(buffer) == ACL_SUCCESS ? 0 : 1;
          });
          if (status != 0) std::exit(1);
        }
        std::_Exit(7);
      },
      testing::ExitedWithCode(7), "");
}
#endif

TEST_F(AclExit, AProcessThatOnlyCountedDevicesMayFork) {
  EXPECT_EXIT(
      {
        uint32_t count = 0;
        require(aclInit(nullptr) == ACL_SUCCESS && aclrtGetDeviceCount(&count) == ACL_SUCCESS && count >= 1);
        std::exit(status_of_fork([] {
          char value = 0;
          void* memory = nullptr;
          require(aclrtSetDevice(0) == ACL_SUCCESS);
          require(aclrtMalloc(&memory, 1, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
          require(aclrtMemset(memory, 1, 7, 1) == ACL_SUCCESS);
          require(aclrtMemcpy(&value, 1, memory, 1, ACL_MEMCPY_DEVICE_TO_HOST) == ACL_SUCCESS);
          return int{value};
        }));
      },
      testing::ExitedWithCode(7), "");
}

#ifndef __SANITIZE_THREAD__  // whose allocator hangs in forks of processes with threads
TEST_F(AclExit, AForkWhileOtherThreadsInitialiseAndAllocateDoesNotHang) {
  EXPECT_EXIT(
      {
        for (int t = 0; t < 2; ++t)
          std::thread([] {
            while (true) {
              void* memory = nullptr;
              (void)aclInit(nullptr);
              if (aclrtSetDevice(0) == ACL_SUCCESS && aclrtMallocHost(&memory, 8) == ACL_SUCCESS)
                (void)aclrtFreeHost(memory);
              (void)aclFinalize();
            }
          }).detach();
        void* memory = nullptr;
        while (memory == nullptr) {  // the others may finalise in between
          (void)aclInit(nullptr);
          if (aclrtSetDevice(0) == ACL_SUCCESS) (void)aclrtMallocHost(&memory, 8);
        }
        for (int round = 0; round < 50; ++round) {
          const int status = status_of_fork([&] {
            int32_t active = 0;
            (void)aclInit(nullptr);
            (void)aclFinalize();
            require(aclrtGetPrimaryCtxState(0, nullptr, &active) == ACL_ERROR_RT_DEV_SETUP_ERROR);
            return aclrtFreeHost(memory) == ACL_SUCCESS ? 0 : 1;
          });
          if (status != 0) std::_Exit(1);
        }
        std::_Exit(7);
      },
      testing::ExitedWithCode(7), "");
}
#endif

/// Destroyed after all thread_local objects of its thread.
void fail_late() {
  for (int i = 0; i < 40; ++i) require(aclrtDestroyStream(&i) != ACL_SUCCESS);
  require(aclGetRecentErrMsg() != nullptr);
}

TEST_F(AclExit, FunctionsServeExitHandlersAndDestructorsOfThreads) {
  EXPECT_EXIT(
      {
        std::atexit([] { fail_late(); });
        aclrtContext destroyed = nullptr;
        require(aclrtCreateContext(&destroyed, 0) == ACL_SUCCESS);
        std::atexit([] {  // before the end of the device
          aclrtContext context = nullptr;
          require(aclrtGetCurrentContext(&context) != ACL_SUCCESS);
          require(aclrtCreateContext(&context, 0) == ACL_SUCCESS);
          require(aclrtDestroyContext(context) == ACL_SUCCESS);
          fail_late();
        });
        fail_late();
        require(aclrtDestroyContext(destroyed) == ACL_SUCCESS);
        std::thread([] {
          pthread_key_t key = 0;
          require(pthread_key_create(&key, [](void*) { fail_late(); }) == 0);
          require(pthread_setspecific(key, &key) == 0);
          fail_late();
        }).join();
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

#ifndef __SANITIZE_THREAD__  // whose own thread never ends
TEST_F(AclExit, TheProcessEndsWhenItsFirstThreadLeavesAndTheWorkIsDone) {
  EXPECT_EXIT(
      {
        void* memory = nullptr;
        require(aclrtSetDevice(0) == ACL_SUCCESS);
        require(aclrtMalloc(&memory, 1 << 22, ACL_MEM_MALLOC_HUGE_FIRST) == ACL_SUCCESS);
        require(aclrtMemsetAsync(memory, 1 << 22, 1, 1 << 22, nullptr) == ACL_SUCCESS);
        require(aclrtLaunchHostFunc(nullptr, [](void*) {}, nullptr) == ACL_SUCCESS);
        syscall(SYS_exit, 0);  // as pthread_exit, which would unwind through the test
      },
      testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
