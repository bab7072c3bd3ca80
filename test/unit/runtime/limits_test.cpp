#include "runtime/limits.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/parallel.h"
#include "runtime/device.h"

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

}  // namespace
}  // namespace anynpu
