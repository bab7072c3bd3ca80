#include "runtime/block_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <random>
#include <thread>

#include "base/error.h"
#include "runtime/device.h"

namespace anynpu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

/// A pool of its own over an arena of its own, so that numbers are exact.
class BlockPoolTest : public testing::Test {
 protected:
  Arena arena_{0};
  BlockPool pool_{arena_};
  int64_t allocated() const { return pool_.stats().allocated_bytes[kAllMemory].current; }
  int64_t reserved() const { return pool_.stats().reserved_bytes[kAllMemory].current; }
};

TEST_F(BlockPoolTest, GivesWritableAlignedMemoryOfTheSizeAsked) {
  for (size_t size : {size_t{1}, size_t{511}, size_t{512}, size_t{513}, kMiB, kMiB + 1, 30 * kMiB}) {
    Block* block = pool_.allocate(size, 1);
    EXPECT_GE(BlockPool::size(block), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(BlockPool::address(block)) % 64, 0u);
    std::memset(BlockPool::address(block), 0xab, size);
    EXPECT_EQ(pool_.find(BlockPool::address(block)), block);
    pool_.free(block);
    EXPECT_EQ(pool_.find(BlockPool::address(block)), nullptr);
  }
  EXPECT_EQ(allocated(), 0);
}

TEST_F(BlockPoolTest, ZeroBytesAreNoBlock) {
  EXPECT_EQ(pool_.allocate(0, 1), nullptr);
  pool_.free(nullptr);
  EXPECT_EQ(BlockPool::address(nullptr), nullptr);
}

TEST_F(BlockPoolTest, ReusesAFreedBlockForTheSameStreamOnly) {
  for (size_t size : {size_t{4096}, 3 * kMiB + 4096, 65 * kMiB + 512}) {
    Block* block = pool_.allocate(size, 1);
    void* address = BlockPool::address(block);
    pool_.free(block);
    Block* other = pool_.allocate(size, 2);
    EXPECT_NE(BlockPool::address(other), address);
    Block* same = pool_.allocate(size, 1);
    EXPECT_EQ(BlockPool::address(same), address);
    pool_.free(other);
    pool_.free(same);
  }
}

TEST_F(BlockPoolTest, NeighboursMergeWhenFreed) {
  std::vector<Block*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(pool_.allocate(32 << 10, 1));  // exactly one small segment
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMiB));
  for (size_t i = 0; i < blocks.size(); i += 2) pool_.free(blocks[i]);
  EXPECT_EQ(pool_.stats().inactive_split[kAllMemory].current, 32);
  for (size_t i = 1; i < blocks.size(); i += 2) pool_.free(blocks[i]);
  EXPECT_EQ(pool_.stats().inactive_split[kAllMemory].current, 0);
  EXPECT_EQ(pool_.stats().inactive_split_bytes[kAllMemory].current, 0);
  pool_.release_unused();
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(arena_.committed(), 0u);
}

TEST_F(BlockPoolTest, ReleaseUnusedKeepsSegmentsInUse) {
  Block* small = pool_.allocate(100, 1);
  Block* large = pool_.allocate(64 * kMiB, 1);
  pool_.free(large);
  pool_.release_unused();
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMiB));
  std::memset(BlockPool::address(small), 1, 100);
  pool_.free(small);
}

TEST_F(BlockPoolTest, CountersFollowTorch) {
  Block* a = pool_.allocate(1000, 1);
  Block* b = pool_.allocate(5 * kMiB, 1);
  MemoryStats stats = pool_.stats();
  EXPECT_EQ(stats.allocated_bytes[kSmallBlocks].current, 1024);
  EXPECT_EQ(stats.requested_bytes[kSmallBlocks].current, 1000);
  EXPECT_EQ(stats.allocated_bytes[kLargeBlocks].current, static_cast<int64_t>(5 * kMiB));
  EXPECT_EQ(stats.reserved_bytes[kAllMemory].current, static_cast<int64_t>(22 * kMiB));
  EXPECT_EQ(stats.allocation[kAllMemory].current, 2);
  EXPECT_EQ(stats.segment[kAllMemory].current, 2);
  EXPECT_EQ(stats.inactive_split_bytes[kAllMemory].current, static_cast<int64_t>(17 * kMiB) - 1024);
  pool_.free(a);
  pool_.free(b);
  stats = pool_.stats();
  EXPECT_EQ(stats.allocated_bytes[kAllMemory].current, 0);
  EXPECT_EQ(stats.allocated_bytes[kAllMemory].peak, static_cast<int64_t>(5 * kMiB) + 1024);
  EXPECT_EQ(stats.allocated_bytes[kAllMemory].freed, stats.allocated_bytes[kAllMemory].allocated);
  EXPECT_EQ(stats.active_bytes[kAllMemory].current, 0);
  pool_.reset_peak_stats();
  EXPECT_EQ(pool_.stats().allocated_bytes[kAllMemory].peak, 0);
}

TEST_F(BlockPoolTest, ABlockRestsUntilOtherStreamsAreDoneWithIt) {
  auto user = Device::get(0).create_stream();
  Block* block = pool_.allocate(4096, 1);
  void* address = BlockPool::address(block);
  std::latch go(1);
  user->launch(Lane::kHost, [&] { go.wait(); });
  pool_.record_stream(block, user);
  pool_.free(block);
  EXPECT_EQ(allocated(), 0) << "freed for the owner";
  EXPECT_EQ(pool_.stats().active_bytes[kAllMemory].current, 4096) << "still used by another stream";
  Block* meanwhile = pool_.allocate(4096, 1);
  EXPECT_NE(BlockPool::address(meanwhile), address);
  go.count_down();
  user->synchronize();
  Block* after = pool_.allocate(4096, 1);
  EXPECT_EQ(BlockPool::address(after), address);
  pool_.free(meanwhile);
  pool_.free(after);
}

TEST_F(BlockPoolTest, OutOfMemoryNamesTheNumbersAndIsSurvived) {
  const size_t total = MemoryBudget::instance().total();
  Block* block = pool_.allocate(kMiB, 1);
  for (size_t size : {total + 1, total, SIZE_MAX - 100}) {
    try {
      pool_.free(pool_.allocate(size, 1));
      FAIL() << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      const std::string text = error.what();
      EXPECT_EQ(text.rfind("NPU out of memory. Tried to allocate ", 0), 0u) << text;
      for (const char* part : {"total capacity", "is free", "1.00 MiB allocated", "reserved"})
        EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
    }
  }
  EXPECT_EQ(pool_.stats().num_ooms, 3);
  pool_.free(block);
  pool_.free(pool_.allocate(kMiB, 1));
}

TEST_F(BlockPoolTest, GivesCachedMemoryBackBeforeItFails) {
  const size_t total = MemoryBudget::instance().total();
  pool_.set_fraction(static_cast<double>(64 * kMiB) / static_cast<double>(total));
  pool_.free(pool_.allocate(40 * kMiB, 1));
  Block* block = pool_.allocate(50 * kMiB, 2);  // does not fit beside the cached 40
  EXPECT_EQ(pool_.stats().num_alloc_retries, 1);
  EXPECT_THROW(pool_.allocate(20 * kMiB, 2), Error);
  pool_.free(block);
  EXPECT_THROW(pool_.set_fraction(1.5), Error);
}

TEST_F(BlockPoolTest, SnapshotAddsUp) {
  Block* a = pool_.allocate(700, 5);
  Block* b = pool_.allocate(3 * kMiB, 6);
  const auto segments = pool_.snapshot();
  ASSERT_EQ(segments.size(), 2u);
  for (const auto& segment : segments) {
    size_t sum = 0;
    for (const auto& piece : segment.pieces) {
      EXPECT_EQ(piece.address, static_cast<char*>(segment.address) + sum);
      sum += piece.size;
    }
    EXPECT_EQ(sum, segment.size);
  }
  pool_.free(a);
  pool_.free(b);
}

TEST(BlockPoolDeathTest, DebugModeFaultsOutsideOfLiveBlocks) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("ANYNPU_DEBUG_MEMORY", "1", 1);
        Arena arena(0);
        BlockPool pool(arena);
        for (size_t size : {size_t{1}, size_t{1000}, kMiB, 21 * kMiB}) {
          Block* block = pool.allocate(size, 1);
          std::memset(BlockPool::address(block), 1, size);
          pool.free(block);
        }
        if (arena.committed() != 0) std::exit(1);  // nothing is cached
        Block* block = pool.allocate(1000, 1);
        auto* bytes = static_cast<volatile char*>(BlockPool::address(block));
        signal(SIGSEGV, [](int) { _exit(7); });
        bytes[1024] = 1;
      },
      testing::ExitedWithCode(7), "");
}

TEST_F(BlockPoolTest, RandomUseFromManyThreadsNeverOverlaps) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      std::vector<std::pair<Block*, size_t>> live;
      for (int step = 0; step < 3000; ++step) {
        if (live.size() < 40 && random() % 2 == 0) {
          const size_t size = 1 + random() % (random() % 8 == 0 ? 4 * kMiB : 20000);
          Block* block = pool_.allocate(size, random() % 3);
          std::memset(BlockPool::address(block), t + 1, std::min<size_t>(size, 4096));
          live.emplace_back(block, size);
        } else if (!live.empty()) {
          std::swap(live[random() % live.size()], live.back());
          const auto [block, size] = live.back();
          const auto* bytes = static_cast<const unsigned char*>(BlockPool::address(block));
          for (size_t i = 0; i < std::min<size_t>(size, 4096); ++i) ASSERT_EQ(bytes[i], t + 1);
          pool_.free(block);
          live.pop_back();
        }
      }
      for (auto [block, size] : live) pool_.free(block);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(allocated(), 0);
  pool_.release_unused();
  EXPECT_EQ(reserved(), 0);
}

}  // namespace
}  // namespace anynpu
