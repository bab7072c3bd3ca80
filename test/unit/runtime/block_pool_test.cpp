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

TEST_F(BlockPoolTest, OutOfMemoryNamesTheLargestHolders) {
  std::vector<Block*> blocks = {pool_.allocate(3 * kMiB, 1), pool_.allocate(700, 1)};
  for (int i = 0; i < 4; ++i) blocks.push_back(pool_.allocate(2 * kMiB, 1));
  try {
    pool_.allocate(SIZE_MAX / 2, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Most is held by 4 x 2.00 MiB, 1 x 3.00 MiB, 1 x 700 bytes."),
              std::string::npos)
        << error.what();
  }
  for (Block* block : blocks) pool_.free(block);
}

TEST_F(BlockPoolTest, AGroupSharesNoSegmentAndKeepsItsOwn) {
  Block* at_large = pool_.allocate(kMiB / 2, 1);
  Block* grouped = pool_.allocate(kMiB / 2, 1, 7);
  void* address = BlockPool::address(grouped);
  EXPECT_EQ(pool_.stats().segment[kAllMemory].current, 2);
  EXPECT_EQ(pool_.stats().group_reserved_bytes.at(7)[kSmallBlocks].current, static_cast<int64_t>(2 * kMiB));
  pool_.free(at_large);
  pool_.free(grouped);
  pool_.release_unused();
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMiB)) << "the group's segment stays";
  Block* again = pool_.allocate(kMiB / 2, 1, 7);
  EXPECT_EQ(BlockPool::address(again), address);
  pool_.drop_group(7);
  EXPECT_EQ(reserved(), static_cast<int64_t>(2 * kMiB)) << "it is in use";
  pool_.free(again);
  pool_.release_unused();
  EXPECT_EQ(reserved(), 0);
  EXPECT_EQ(pool_.stats().group_reserved_bytes.at(7)[kAllMemory].current, 0);
}

TEST_F(BlockPoolTest, AnObserverIsToldEverythingInOrder) {
  struct Seen {
    PoolEvent::Action action;
    size_t size;
    uint64_t stream;
    void* note;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen;
  pool_.observe([&](const PoolEvent& event) {
    seen.push_back({event.action, event.size, event.stream, event.note.get()});
  });
  const PoolNote made = std::make_shared<int>(1), freed = std::make_shared<int>(2);
  Block* block = pool_.allocate(1000, 3, 0, made);
  EXPECT_EQ(pool_.snapshot().front().pieces.front().note, made);
  EXPECT_EQ(pool_.snapshot().front().requested, 1000u);
  pool_.free(block, freed);
  EXPECT_EQ(pool_.snapshot().front().pieces.front().note, nullptr);
  pool_.release_unused();
  EXPECT_THROW(pool_.allocate(SIZE_MAX / 2, 4, 0, made), Error);
  pool_.observe(nullptr);
  pool_.free(pool_.allocate(1000, 3));
  const std::vector<Seen> expected = {
      {PoolEvent::kSegmentAlloc, 2 * kMiB, 3, nullptr},  {PoolEvent::kAlloc, 1000, 3, made.get()},
      {PoolEvent::kFreeRequested, 1000, 3, freed.get()}, {PoolEvent::kFreeCompleted, 1000, 3, made.get()},
      {PoolEvent::kSegmentFree, 2 * kMiB, 3, nullptr},   {PoolEvent::kOom, SIZE_MAX / 2, 4, made.get()},
  };
  EXPECT_EQ(seen, expected);
}

/// With settings of its own, which end with it.
class BlockPoolSettingsTest : public BlockPoolTest {
 protected:
  ~BlockPoolSettingsTest() override { BlockPool::configure({}); }
};

TEST_F(BlockPoolSettingsTest, OversizeBlocksAreNeverShared) {
  BlockPool::configure({.max_split_size = 24 * kMiB, .max_non_split_rounding = 8 * kMiB});
  Block* big = pool_.allocate(40 * kMiB, 1);
  EXPECT_EQ(pool_.stats().oversize_allocations.current, 1);
  EXPECT_EQ(pool_.stats().oversize_segments.current, 1);
  void* address = BlockPool::address(big);
  pool_.free(big);
  EXPECT_EQ(pool_.stats().oversize_allocations.current, 0);
  Block* small = pool_.allocate(5 * kMiB, 1);
  EXPECT_NE(BlockPool::address(small), address) << "no part of an oversize block";
  Block* too_small = pool_.allocate(25 * kMiB, 1);
  EXPECT_NE(BlockPool::address(too_small), address) << "15 MiB would be wasted";
  Block* near = pool_.allocate(34 * kMiB, 1);
  EXPECT_EQ(BlockPool::address(near), address);
  EXPECT_EQ(BlockPool::size(near), 40 * kMiB) << "whole, not split";
  for (Block* block : {small, too_small, near}) pool_.free(block);
}

TEST_F(BlockPoolSettingsTest, SizesAreRoundedToDivisionsOfPowersOfTwo) {
  BlockPool::configure({.roundup_power2_divisions = {4, 1, 8}});
  for (const auto& [size, rounded] : std::initializer_list<std::pair<size_t, size_t>>{
           {600, 1024},                          // a quarter of 512 is less than the unit
           {5000, 5120},                         // 4096 + 1024
           {kMiB + 1, kMiB + kMiB / 4},          // 1 MiB: 4
           {2 * kMiB + 1, 2 * kMiB + 512},       // 2 MiB: none
           {4 * kMiB + 1, 4 * kMiB + kMiB / 2},  // 4 MiB: 8
           {8 * kMiB + 1, 9 * kMiB}}) {          // and so on
    Block* block = pool_.allocate(size, 1);
    EXPECT_EQ(pool_.stats().allocated_bytes[kAllMemory].current, static_cast<int64_t>(rounded)) << size;
    pool_.free(block);
  }
}

TEST_F(BlockPoolSettingsTest, GarbageIsCollectedOldestFirst) {
  const auto total = static_cast<double>(MemoryBudget::instance().total());
  pool_.set_fraction(static_cast<double>(200 * kMiB) / total);
  BlockPool::configure({.garbage_collection_threshold = 0.5});
  Block* old = pool_.allocate(30 * kMiB, 1);
  Block* young = pool_.allocate(40 * kMiB, 1);
  void* kept = BlockPool::address(young);
  pool_.free(old);
  pool_.free(young);
  Block* third = pool_.allocate(50 * kMiB, 1);  // 30 + 40 + 50 pass half of 200
  EXPECT_EQ(reserved(), static_cast<int64_t>(90 * kMiB));
  Block* reused = pool_.allocate(40 * kMiB, 1);
  EXPECT_EQ(BlockPool::address(reused), kept);
  EXPECT_EQ(pool_.stats().num_alloc_retries, 0);
  pool_.free(third);
  pool_.free(reused);
}

TEST_F(BlockPoolSettingsTest, WithoutCachingNothingUnusedStays) {
  BlockPool::configure({.caching = false});
  Block* a = pool_.allocate(5 * kMiB, 1);
  EXPECT_EQ(reserved(), static_cast<int64_t>(6 * kMiB));
  pool_.free(a);
  EXPECT_EQ(reserved(), 0);
  BlockPool::configure({.large_segment_size = 32 * kMiB});
  a = pool_.allocate(5 * kMiB, 1);
  EXPECT_EQ(reserved(), static_cast<int64_t>(32 * kMiB));
  pool_.free(a);
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

TEST_F(BlockPoolTest, ATaskGetsNoBlockOfWorkThatIsQueuedBehindIt) {
  const auto stream = Device::get(0).create_stream();
  void* given = nullptr;
  stream->call(Lane::kShort, [&] {
    void* queued = nullptr;
    std::thread([&] {
      Block* block = pool_.allocate(4096, stream->id());
      queued = BlockPool::address(block);
      stream->launch(Lane::kShort, [] {});  // would use it
      pool_.free(block);
    }).join();
    Block* block = pool_.allocate(4096, stream->id());
    given = BlockPool::address(block);
    EXPECT_NE(given, queued);
    pool_.free(block);  // while work is queued
    Block* other = pool_.allocate(4096, stream->id());
    EXPECT_NE(BlockPool::address(other), given);
    pool_.free(other);
  });
  ASSERT_TRUE(stream->synchronize());
  stream->call(Lane::kShort, [&] {
    Block* first = pool_.allocate(4096, stream->id());
    Block* second = pool_.allocate(4096, stream->id());
    EXPECT_EQ(std::min(BlockPool::address(first), BlockPool::address(second)), given)
        << "it rested till then";
    pool_.free(first);
    EXPECT_EQ(BlockPool::address(pool_.allocate(4096, stream->id())), BlockPool::address(first))
        << "nothing is queued: it is free at once";
    pool_.free(second);
  });
}

}  // namespace
}  // namespace anynpu
