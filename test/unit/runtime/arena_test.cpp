#include "runtime/arena.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace anynpu {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(Arena, CommitsAndGivesBackPages) {
  Arena arena(0);
  const size_t before = MemoryBudget::instance().committed();
  auto* bytes = static_cast<char*>(arena.allocate(5000));
  EXPECT_EQ(arena.committed(), 8192u);
  EXPECT_EQ(MemoryBudget::instance().committed(), before + 8192);
  EXPECT_EQ(bytes[4999], 0) << "pages come zeroed";
  std::memset(bytes, 1, 5000);
  ASSERT_TRUE(arena.find(bytes + 4999).has_value());
  EXPECT_EQ(arena.find(bytes + 4999)->begin, bytes);
  EXPECT_TRUE(arena.contains(bytes));
  arena.free(bytes);
  EXPECT_FALSE(arena.find(bytes).has_value());
  EXPECT_EQ(MemoryBudget::instance().committed(), before);
  auto* again = static_cast<char*>(arena.allocate(5000));
  EXPECT_EQ(again[0], 0) << "and come zeroed again";
  arena.free(again);
}

TEST(Arena, LargeRangesAreAlignedToHugePages) {
  Arena arena(0);
  void* small = arena.allocate(1);
  void* large = arena.allocate(3 * kMiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % Arena::kHugePage, 0u);
  arena.free(small);
  arena.free(large);
}

TEST(Arena, FreedRangesMerge) {
  Arena arena(0);
  std::vector<void*> ranges;
  for (int i = 0; i < 32; ++i) ranges.push_back(arena.allocate(kMiB));
  void* first = ranges[0];
  for (int i : {1, 3, 2, 0}) arena.free(ranges[i]);
  EXPECT_EQ(arena.allocate(4 * kMiB - 8192), first) << "four neighbours make one range";
  for (int i = 4; i < 32; ++i) arena.free(ranges[i]);
  arena.free(first);
}

TEST(Arena, RefusesWhatItDidNotGive) {
  Arena arena(0);
  int local = 0;
  auto* bytes = static_cast<char*>(arena.allocate(10));
  EXPECT_THROW(arena.free(&local), Error);
  EXPECT_THROW(arena.free(bytes + 1), Error);
  EXPECT_THROW(arena.free(nullptr), Error);
  EXPECT_THROW(arena.allocate(0), Error);
  arena.free(bytes);
  EXPECT_THROW(arena.free(bytes), Error) << "freed twice";
}

TEST(Arena, PassingTheBudgetIsOutOfMemory) {
  Arena arena(0);
  for (size_t size : {MemoryBudget::instance().total() + 1, SIZE_MAX, SIZE_MAX - 5000}) {
    try {
      arena.allocate(size);
      FAIL() << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    }
  }
  EXPECT_EQ(arena.committed(), 0u);
}

TEST(ArenaDeathTest, FreedMemoryFaults) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        Arena arena(0);
        auto* bytes = static_cast<volatile char*>(arena.allocate(kMiB));
        bytes[0] = 1;
        arena.free(const_cast<char*>(bytes));
        bytes[0] = 2;
      },
      "");
}

TEST(ArenaDeathTest, DebugModeFaultsRightBehindARange) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  for (size_t size : {size_t{64}, size_t{4096}, 3 * kMiB + 64})
    EXPECT_DEATH(
        {
          setenv("ANYNPU_DEBUG_MEMORY", "1", 1);
          Arena arena(0);
          auto* bytes = static_cast<volatile char*>(arena.allocate(size));
          bytes[0] = 1;
          bytes[size - 1] = 1;
          arena.free(const_cast<char*>(bytes));
          bytes = static_cast<volatile char*>(arena.allocate(size));
          fprintf(stderr, "in bounds\n");
          bytes[size] = 1;
        },
        "in bounds");
}

TEST(ArenaDeathTest, ForksDoNotInheritDeviceMemory) {
  testing::GTEST_FLAG(death_test_style) = "fast";
  Arena arena(0);
  auto* bytes = static_cast<volatile char*>(arena.allocate(kMiB));
  bytes[0] = 1;
  EXPECT_DEATH(bytes[0] = 2, "");  // the statement runs in a fork
  EXPECT_EQ(bytes[0], 1);
  arena.free(const_cast<char*>(bytes));
}

}  // namespace
}  // namespace anynpu
