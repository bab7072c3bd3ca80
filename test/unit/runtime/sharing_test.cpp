#include "runtime/sharing.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/standstill.h"

namespace anynpu {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPage = Arena::kPage;

TEST(Sharing, LosesNoWriteOfTasksThatRunMeanwhile) {
  constexpr int kStreams = 3, kTasks = 4000;
  Device& device = Device::get(0);
  auto* memory = static_cast<char*>(device.arena().allocate(kStreams * kPage));
  std::vector<std::thread> writers;
  for (int i = 0; i < kStreams; ++i)
    writers.emplace_back(
        [stream = device.create_stream(), counters = reinterpret_cast<uint32_t*>(memory + i * kPage), i] {
          const auto count = [counters] {
            for (size_t at = 0; at < kPage / sizeof(uint32_t); at += 64) ++counters[at];
          };
          for (int task = 0; task < kTasks; ++task)
            stream->launch(i == 0 ? Lane::kParallel : Lane::kShort, count);
          stream->synchronize();
        });
  for (int i = 0; i < kStreams; ++i) {
    const std::string key = export_memory(memory + i * kPage, kPage, Importers::kAllowed);
    const ImportedMemory imported(key, device);
    EXPECT_EQ(imported.size(), kPage);
    end_export(key);
  }
  for (auto& writer : writers) writer.join();
  for (int i = 0; i < kStreams; ++i)
    for (size_t at = 0; at < kPage / sizeof(uint32_t); at += 64)
      EXPECT_EQ(reinterpret_cast<uint32_t*>(memory + i * kPage)[at], uint32_t{kTasks}) << i << ", " << at;
  device.arena().free(memory);
}

TEST(Sharing, AStorageIsASegmentOfThePoolAndAnOffset) {
  Device& device = Device::get(0);
  Block* block = device.pool().allocate(1000, device.default_stream().id());
  auto* bytes = static_cast<char*>(BlockPool::address(block));
  std::memset(bytes, 3, 1000);
  const auto segment = device.arena().find(bytes);
  ASSERT_TRUE(segment.has_value());
  const std::string key = export_memory(segment->begin, segment->size, Importers::kAnyProcess);
  const ImportedMemory imported(key, device);
  auto* same = static_cast<char*>(imported.address()) + (bytes - segment->begin);
  EXPECT_EQ(std::memcmp(same, bytes, 1000), 0);
  same[999] = 7;
  EXPECT_EQ(bytes[999], 7);
  end_export(key);
  device.pool().free(block);
  device.pool().release_unused();
}

/// Bytes of blocks that are allocated, or rest, once what was given back is.
int64_t active_bytes(Device& device) {
  Exports::instance().settle();
  device.pool().collect();
  return device.pool().stats().active_bytes[kAllMemory].current;
}

TEST(Sharing, ALentBlockRestsUntilAllWhoBorrowedItGaveItBack) {
  Device& device = Device::get(0);
  const int64_t before = active_bytes(device);
  Block* block = device.pool().allocate(1000, device.default_stream().id());
  auto* bytes = static_cast<char*>(BlockPool::address(block));
  std::memset(bytes, 3, 1000);
  const std::string key = lend(block), other_key = lend(block);
  EXPECT_NE(key, other_key);
  auto first = std::make_unique<BorrowedMemory>(key, 0);
  auto second = std::make_unique<BorrowedMemory>(other_key, 0);
  EXPECT_EQ(first->address(), second->address());
  EXPECT_EQ(first->size(), BlockPool::size(block));
  EXPECT_EQ(std::memcmp(first->address(), bytes, 1000), 0);
  static_cast<char*>(first->address())[999] = 7;
  EXPECT_EQ(bytes[999], 7);

  const auto rests = static_cast<int64_t>(BlockPool::size(block));
  device.pool().free(block);
  EXPECT_EQ(active_bytes(device), before + rests);
  first.reset();
  EXPECT_EQ(active_bytes(device), before + rests);
  first = std::make_unique<BorrowedMemory>(other_key, 0);
  second.reset();
  EXPECT_EQ(active_bytes(device), before + rests);

  const auto stream = device.create_stream();
  std::atomic<bool> go = false;
  stream->launch(Lane::kHost, [&] { go.wait(false); });
  first.reset();
  EXPECT_EQ(active_bytes(device), before + rests) << "queued work may use it";
  go = true;
  go.notify_all();
  ASSERT_TRUE(Device::wait_for_after_work(20s));
  EXPECT_EQ(active_bytes(device), before);
  for (const auto& over : {key, other_key}) EXPECT_THROW(BorrowedMemory(over, 0), Error);
}

TEST(Sharing, ALoanThatCannotBeMappedIsGivenBack) {
  Device& device = Device::get(0);
  const int64_t before = active_bytes(device);
  Block* block = device.pool().allocate(1000, device.default_stream().id());
  const std::string key = lend(block);
  device.pool().free(block);
  EXPECT_GT(active_bytes(device), before) << "it is on its way";
  try {
    const BorrowedMemory memory(key, kMostDevices);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidDevice);
  }
  EXPECT_EQ(active_bytes(device), before);
}

TEST(Sharing, TakesNoMemoryForZerosAndGivesAllBack) {
  Device& device = Device::get(0);
  ASSERT_TRUE(Device::wait_for_after_work(10s));  // what earlier tests unmapped
  const size_t before = MemoryBudget::instance().committed(), own = device.arena().committed();
  constexpr size_t kSize = 300 * Arena::kPage + (size_t{80} << 20);  // more than is moved at once
  auto* memory = static_cast<char*>(device.arena().allocate(kSize));
  memory[kSize - 1] = 5;
  memory[70 << 20] = 6;
  const auto shared = device.arena().share(memory, kSize);
  EXPECT_EQ(device.arena().share(memory, kSize), shared);
  EXPECT_EQ(MemoryBudget::instance().committed(), before + kSize);
  EXPECT_EQ(memory[kSize - 1], 5);
  EXPECT_EQ(memory[70 << 20], 6);
  struct stat status = {};
  ASSERT_EQ(fstat(shared->file(), &status), 0);
  EXPECT_LE(static_cast<size_t>(status.st_blocks) * 512, 2 * Arena::kHugePage);
  device.arena().free(memory);
  EXPECT_EQ(MemoryBudget::instance().committed(), before + kSize) << "an owner is left";
  const_cast<std::shared_ptr<PhysicalMemory>&>(shared).reset();
  EXPECT_EQ(MemoryBudget::instance().committed(), before);
  EXPECT_EQ(device.arena().committed(), own);
}

TEST(Sharing, WaitsForTheNameOfItsSocket) {
  struct stat name_space = {};
  ASSERT_EQ(stat("/proc/self/ns/pid", &name_space), 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = concat("anynpu.", name_space.st_ino, ".", getpid());
  name.copy(address.sun_path + 1, name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Descriptor other(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  while (bind(other.get(), reinterpret_cast<const sockaddr*>(&address), size) !=
         0)  // exports of earlier tests
    std::this_thread::sleep_for(1ms);

  Device& device = Device::get(0);
  void* memory = device.arena().allocate(kPage);
  std::thread end([&] {
    std::this_thread::sleep_for(20ms);
    other = Descriptor();
  });
  end_export(export_memory(memory, kPage, Importers::kAllowed));
  end.join();
  device.arena().free(memory);
}

TEST(Standstill, NoTaskRunsAndNoneIsLost) {
  Device& device = Device::get(0);
  std::atomic<int> inside = 0, runs = 0;
  std::atomic<bool> end = false;
  std::vector<std::thread> threads;
  std::atomic<int> launched = 0;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      const auto stream = device.create_stream();
      while (!end) {
        const auto task = [&] {
          ++inside;
          ++runs;
          --inside;
        };
        ++launched;
        if (i == 0) {
          stream->call(Lane::kShort, task);
        } else {
          stream->launch(i == 1 ? Lane::kShort : Lane::kParallel, task);
          stream->synchronize();
        }
      }
    });
  for (int round = 0; round < 200; ++round) {
    const Standstill standstill;
    const int before = runs;
    EXPECT_EQ(inside, 0);
    const auto made_meanwhile = Stream::create(0);
    bool ran = false;
    made_meanwhile->launch(Lane::kShort, [&] { ran = true; });
    EXPECT_FALSE(ran);
    EXPECT_EQ(runs, before);
    made_meanwhile->abort(std::nullopt);
  }
  end = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(runs, launched);
}

TEST(Standstill, HostFunctionsGoOn) {
  Device& device = Device::get(0);
  const auto stream = device.create_stream();
  std::atomic<bool> go = false;
  stream->launch(Lane::kHost, [&] { go.wait(false); });
  {
    const Standstill standstill;
    EXPECT_FALSE(stream->synchronize(0ms));
  }
  go = true;
  go.notify_all();
  EXPECT_TRUE(stream->synchronize());
}

}  // namespace
}  // namespace anynpu
