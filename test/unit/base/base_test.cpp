#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "base/options.h"
#include "base/parallel.h"
#include "base/unique_function.h"

namespace anynpu {
namespace {

Option sample("ANYNPU_TEST_SAMPLE", "4K", "a number for this test");

class OptionTest : public testing::Test {
 protected:
  void TearDown() override { unsetenv(sample.name()); }
  static void set(const char* value) { setenv(sample.name(), value, 1); }
};

TEST_F(OptionTest, ReadsNumbersWithSuffixes) {
  EXPECT_EQ(sample.integer(), 4096);
  const std::pair<const char*, int64_t> values[] = {
      {"0", 0}, {"17", 17}, {"3M", 3 << 20}, {"2G", int64_t{2} << 30}};
  for (auto [text, value] : values) {
    set(text);
    EXPECT_EQ(sample.integer(), value) << text;
  }
}

TEST_F(OptionTest, RefusesWhatIsNoNumberAndSaysWhy) {
  for (const char* text : {"x", "1x", "1KK", "-1", "99999999999999999999", "9000000000G", " "}) {
    set(text);
    try {
      sample.integer();
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(sample.name()), std::string::npos);
    }
  }
  set("5");
  EXPECT_THROW(sample.integer(6), Error);
}

TEST_F(OptionTest, EmptyIsUnset) {
  set("");
  EXPECT_EQ(sample.text(), sample.fallback());
  EXPECT_EQ(sample.integer(), 4096);
}

TEST_F(OptionTest, ReadsFlags) {
  for (const char* yes : {"1", "true", "on", "yes"}) {
    set(yes);
    EXPECT_TRUE(sample.flag());
  }
  for (const char* no : {"0", "false", "off", "no"}) {
    set(no);
    EXPECT_FALSE(sample.flag());
  }
  set("maybe");
  EXPECT_THROW(sample.flag(), Error);
}

TEST(Options, AreListedByName) {
  const auto options = all_options();
  EXPECT_TRUE(std::is_sorted(options.begin(), options.end(),
                             [](auto* a, auto* b) { return std::string(a->name()) < b->name(); }));
  EXPECT_NE(std::find(options.begin(), options.end(), &sample), options.end());
  for (const Option* option : options) EXPECT_FALSE(std::string(option->help()).empty()) << option->name();
}

TEST(UniqueFunction, OwnsSmallAndLargeClosures) {
  auto counter = std::make_shared<int>(0);
  const auto check = [&](auto closure) {
    {
      UniqueFunction function(std::move(closure));
      UniqueFunction moved(std::move(function));
      EXPECT_FALSE(function);  // NOLINT(bugprone-use-after-move): that it is empty is the point
      moved();
      UniqueFunction assigned;
      assigned = std::move(moved);
      assigned();
      EXPECT_EQ(counter.use_count(), 2);
    }
    EXPECT_EQ(counter.use_count(), 1);
  };
  check([counter] { ++*counter; });
  check([counter, padding = std::array<char, 400>{}] { *counter += 1 + padding[0]; });
  check([counter, only = std::make_unique<int>(1)] { *counter += *only; });
  EXPECT_EQ(*counter, 6);
}

TEST(Parallel, RangesCoverEverythingOnce) {
  for (size_t size : {0u, 1u, 7u, 64u, 1000u})
    for (size_t grain : {0u, 1u, 3u, 64u, 5000u}) {
      std::vector<int> hits(size, 0);
      parallel_ranges(size, grain, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) ++hits[i];
      });
      EXPECT_EQ(hits, std::vector<int>(size, 1)) << size << " by " << grain;
    }
}

}  // namespace
}  // namespace anynpu
