#include "runtime/device.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <latch>
#include <thread>

#include "base/error.h"
#include "runtime/memory.h"

namespace anynpu {
namespace {

using namespace std::chrono_literals;

/// Runs `body` in a fork and returns its exit status; a child that hangs is killed and gives -1.
int status_of_fork(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Device, IndicesAreChecked) {
  for (int index : {-1, device_count(), 1 << 20}) {
    try {
      Device::get(index);
      FAIL() << index;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidDevice);
      EXPECT_NE(std::string(error.what()).find(std::to_string(index)), std::string::npos);
    }
    EXPECT_THROW(set_thread_device(index), Error);
  }
}

TEST(Device, EachThreadChoosesItsOwn) {
  set_thread_device(0);
  std::thread([] { EXPECT_FALSE(thread_device().has_value()); }).join();
  EXPECT_EQ(thread_device(), 0);
  set_thread_device(std::nullopt);
  EXPECT_FALSE(thread_device().has_value());
}

TEST(Device, EachThreadHasACurrentStream) {
  Device& device = Device::get(0);
  auto mine = device.create_stream();
  set_current_stream(mine);
  EXPECT_EQ(&current_stream(0), mine.get());
  std::thread([&] { EXPECT_EQ(&current_stream(0), &device.default_stream()); }).join();
  set_current_stream(device.default_stream_ptr());
}

TEST(Device, SynchronizeWaitsForAllStreamsAndRaisesTheirErrors) {
  Device& device = Device::get(0);
  auto a = device.create_stream(), b = device.create_stream();
  std::atomic<int> done = 0;
  std::latch go(1);
  a->launch(Lane::kHost, [&] {
    go.wait();
    ++done;
  });
  b->launch(Lane::kParallel, [&] { ++done; });
  EXPECT_FALSE(device.synchronize(5ms));
  go.count_down();
  EXPECT_TRUE(device.synchronize());
  EXPECT_EQ(done, 2);
  b->launch(Lane::kShort, [] { throw std::runtime_error("task"); });
  EXPECT_THROW(device.synchronize(), std::runtime_error);
  EXPECT_TRUE(device.synchronize());
}

TEST(Device, MemoryIsFoundByAddress) {
  Device& device = Device::get(0);
  Block* block = device.pool().allocate(100, device.default_stream().id());
  EXPECT_EQ(Device::of(BlockPool::address(block)), &device);
  device.pool().free(block);
  int local = 0;
  EXPECT_EQ(Device::of(&local), nullptr);
}

TEST(Device, AForkOfAStartedProcessIsTold) {
  Device& device = Device::get(0);
  Stream& stream = device.default_stream();
  Block* block = device.pool().allocate(100, stream.id());
  EXPECT_EQ(status_of_fork([&] {
              const std::function<void()> uses[] = {
                  [] { Device::get(0); },
                  [&] { stream.launch(Lane::kParallel, [] {}); },
                  [&] { stream.synchronize(); },
                  [&] { Event().record(stream); },
              };
              for (const auto& use : uses) {
                try {
                  use();
                  return 1;
                } catch (const Error& error) {
                  if (error.code() != ErrorCode::kForked) return 2;
                  if (!std::strstr(error.what(), "'spawn' start method")) return 3;
                }
              }
              device.pool().free(block);  // inherited tensors die in the child too
              shutdown();
              return device_count() >= 1 ? 0 : 4;
            }),
            0);
  device.pool().free(block);
}

// Each body runs in a process of its own, started afresh: the exit handlers are what is tested.
TEST(DeviceExitTest, WithWorkQueuedNeitherHangsNorCrashes) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto stream = Device::get(0).create_stream();
        stream->launch(Lane::kHost, [] { std::this_thread::sleep_for(1h); });
        for (int i = 0; i < 1000; ++i) stream->launch(static_cast<Lane>(i % 3), [] {});
        auto busy = Device::get(0).create_stream();
        for (int i = 0; i < 1000; ++i)
          busy->launch(Lane::kParallel, [] { std::this_thread::sleep_for(1ms); });
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(DeviceExitTest, WhileOtherThreadsUseTheDevice) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        std::latch running(3);
        for (Lane lane : {Lane::kShort, Lane::kParallel, Lane::kHost})
          std::thread([&running, lane] {
            auto stream = Device::get(0).create_stream();
            running.count_down();
            try {
              while (true) {
                stream->launch(lane, [] {});
                stream->call(lane, [] {});
                stream->synchronize();
              }
            } catch (const Error& error) {
              if (error.code() != ErrorCode::kNotInitialized) std::abort();
            }
            std::this_thread::sleep_for(1h);
          }).detach();
        running.wait();
        std::this_thread::sleep_for(20ms);
        std::exit(7);
      },
      testing::ExitedWithCode(7), "");
}

TEST(DeviceExitTest, AProcessThatOnlyCountedDevicesMayFork) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        if (device_count() < 1 || Device::started()) std::exit(1);
        std::exit(status_of_fork([] {
          int value = 0;
          Device::get(0).default_stream().call(Lane::kParallel, [&] { value = 5; });
          return value;
        }));
      },
      testing::ExitedWithCode(5), "");
}

}  // namespace
}  // namespace anynpu
