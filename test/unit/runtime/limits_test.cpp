#include "runtime/limits.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/parallel.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace anynpu {
namespace {

/// How many threads a parallel region of a task has that this thread enqueues.
size_t threads_of_region(Stream& stream) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  stream.launch(Lane::kParallel, [&] {
    parallel_ranges(1 << 16, 1, [&](size_t, size_t) {
      std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
  });
  stream.synchronize();
  return threads.size();
}

TEST(CoreLimits, HoldForWorkThatTheComputeThreadCalls) {
  Device& device = Device::get(0);
  const auto outer = device.create_stream(), inner = device.create_stream();
  std::set<std::thread::id> threads;
  outer->call(Lane::kParallel, [&] {
    device.core_limits().set(CoreKind::kVector, 1);
    inner->call(Lane::kParallel, [&] {
      std::mutex mutex;
      parallel_ranges(1 << 16, 1, [&](size_t, size_t) {
        std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      });
    });
    device.core_limits().reset();
  });
  EXPECT_EQ(threads.size(), 1u);
}

TEST(CoreLimits, BoundTheThreadsOfParallelRegions) {
  Device& device = Device::get(0);
  const auto stream = device.create_stream();
  const size_t all = threads_of_region(*stream);
  device.core_limits().set(CoreKind::kVector, 1);
  EXPECT_EQ(threads_of_region(*stream), 1u);
  device.core_limits().reset();
  EXPECT_EQ(threads_of_region(*stream), all) << "the compute thread keeps no limit";

  stream->core_limits().set(CoreKind::kCube, 1);
  EXPECT_EQ(threads_of_region(*stream), all) << "this thread does not use the stream's limits";
  use_core_limits_of(stream);
  EXPECT_EQ(threads_of_region(*stream), 1u);
  EXPECT_EQ(threads_of_region(device.default_stream()), 1u) << "on any stream";
  use_core_limits_of(nullptr);
  EXPECT_EQ(threads_of_region(*stream), all);
  EXPECT_THROW(device.core_limits().set(CoreKind::kCube, 0), Error);
  EXPECT_THROW(device.core_limits().set(CoreKind::kCube, core_count() + 1), Error);
}

// The address sanitizer does not understand how pthread_exit unwinds a thread.
#if !defined(__SANITIZE_ADDRESS__)
TEST(TimeLimits, AnObserverThatEndsItsThreadEndsNothingElse) {
  static std::atomic<int> observed;
  observed = 0;
  observe_failures([](const TaskFailure&) {
    ++observed;
    pthread_exit(nullptr);
  });
  for (int round = 1; round <= 3; ++round) {
    const auto stream = Device::get(0).create_stream(), other = Device::get(0).create_stream();
    const auto never = std::make_shared<Recording>();
    bool ran = false;
    stream->wait(never, std::chrono::milliseconds(2));
    other->wait(never, std::chrono::milliseconds(2));
    stream->launch(Lane::kShort, [&] { ran = true; });
    EXPECT_THROW(stream->synchronize(), Error);
    EXPECT_THROW(other->synchronize(), Error);
    EXPECT_TRUE(ran);
    EXPECT_EQ(observed, 2 * round) << "before the synchronisation returns";
  }
  observe_failures(nullptr);
}
#endif

}  // namespace
}  // namespace anynpu
