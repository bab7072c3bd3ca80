#include "runtime/content_watch.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>

#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/sharing.h"
#include "runtime/value_wait.h"

namespace anynpu {
namespace {

constexpr size_t kSize = size_t{1} << 20;

class ContentWatchTest : public testing::Test {
 protected:
  ~ContentWatchTest() override { device_.pool().free(block_); }

  std::shared_ptr<ContentWatch> watch() {
    return ContentWatch::begin(block_, [this] { ++ended_; });
  }
  char* at(size_t offset) { return static_cast<char*>(BlockPool::address(block_)) + offset; }

  Device& device_ = Device::get(0);
  std::shared_ptr<Stream> stream_ = device_.create_stream();
  Block* block_ = device_.pool().allocate(kSize, stream_->id());
  int ended_ = 0;
};

TEST_F(ContentWatchTest, EndsWithAnyWriteOfTheBlockAndNoOther) {
  Block* const other = device_.pool().allocate(kSize, stream_->id());
  char* const beside = static_cast<char*>(BlockPool::address(other));
  alignas(8) char host[64] = {};
  const std::function<void()> others[] = {
      [&] { copy_async(beside, at(0), kSize, *stream_); },
      [&] { copy_async(host, at(64), sizeof(host), *stream_); },
      [&] { fill_async(beside, 1, kSize, *stream_); },
      [&] { prefetch_async(at(0), kSize, *stream_); },
      [&] { stream_->launch(Lane::kShort, [] {}, Writes::nothing()); },
      [&] { write_value_async(reinterpret_cast<uint64_t*>(host), 1, *stream_); },
      [&] { (void)stream_->record(); },
      [&] { stream_->call(Lane::kShort, [] {}, Writes::nothing()); },
  };
  void* const last[] = {host, at(kSize - 1)};
  const std::function<void()> writes[] = {
      [&] { copy_async(at(kSize - 64), host, sizeof(host), *stream_); },
      [&] { copy_async(RowCopy{at(512), beside, 8, 2, 64, 32}, *stream_); },
      [&] { fill_async(at(1000), 0, 1, *stream_); },
      [&] { write_value_async(reinterpret_cast<uint64_t*>(at(8)), 1, *stream_); },
      [&] { stream_->launch(Lane::kShort, [] {}); },
      [&] { stream_->launch(Lane::kHost, [] {}); },
      [&] { stream_->launch(Lane::kParallel, [] {}, Writes(last)); },
      [&] { stream_->call(Lane::kParallel, [] {}); },
      [&] { stream_->call(Lane::kShort, [] { throw std::runtime_error("it fails"); }, Writes(last)); },
      [&] { const BorrowedMemory taken(lend(block_), 0); },
  };
  int wanted = 0;
  for (const auto& write : writes) {
    const auto watched = watch();
    ASSERT_NE(watched, nullptr);
    EXPECT_EQ(watch(), nullptr) << "a block has one watch";
    for (const auto& other_write : others) other_write();
    EXPECT_FALSE(watched->has_ended());
    try {
      write();
    } catch (const std::runtime_error&) {
    }
    EXPECT_TRUE(watched->has_ended());
    EXPECT_EQ(ended_, ++wanted);
    write_value_async(reinterpret_cast<uint64_t*>(host), 1, *stream_);
    EXPECT_EQ(ended_, wanted) << "called back once";
  }
  EXPECT_EQ(watch(), nullptr) << "another process may write what was lent";
  stream_->synchronize();
  device_.pool().free(other);
}

TEST_F(ContentWatchTest, EndsWithTheBlock) {
  const auto watched = watch();
  device_.pool().free(std::exchange(block_, nullptr));
  EXPECT_TRUE(watched->has_ended());
  EXPECT_EQ(ended_, 1);
}

TEST_F(ContentWatchTest, ABlockThatIsExcludedIsWatchedOnceItIsFreed) {
  const auto watched = watch();
  ContentWatch::exclude_block(at(0), kSize);
  EXPECT_TRUE(watched->has_ended());
  EXPECT_EQ(watch(), nullptr);
  const void* const address = at(0);
  device_.pool().free(block_);
  block_ = device_.pool().allocate(kSize, stream_->id());
  ASSERT_EQ(at(0), address);
  EXPECT_NE(watch(), nullptr);
}

TEST_F(ContentWatchTest, StopsWithoutACall) {
  const auto watched = watch();
  watched->stop();
  EXPECT_TRUE(watched->has_ended());
  fill_async(at(0), 0, 8, *stream_);
  EXPECT_EQ(ended_, 0);
  EXPECT_NE(watch(), nullptr);
}

TEST_F(ContentWatchTest, IsSettledOnceAllEarlierWorkIsDone) {
  Event event;
  const auto gate = std::make_shared<Recording>();
  const auto other = device_.create_stream();
  other->wait(gate);
  fill_async(at(0), 7, kSize, *other);
  const auto watched = watch();
  EXPECT_FALSE(watched->is_settled()) << "the write of the other stream is still to come";
  EXPECT_FALSE(watched->has_ended());
  gate->complete(nullptr);
  other->synchronize();
  while (!Device::wait_for_after_work(std::chrono::seconds(1))) {
  }
  EXPECT_TRUE(watched->is_settled());
  EXPECT_EQ(*at(kSize - 1), 7);
}

/// Whatever the interleaving: a watch that is settled and has not ended saw every write that was enqueued.
TEST_F(ContentWatchTest, MissesNoWriteOfAnotherThread) {
  std::atomic<bool> stop = false;
  std::atomic<int> enqueued = 0;
  const auto other = device_.create_stream();
  std::thread writer([&] {
    while (!stop) {
      void* const written[] = {at(0)};
      other->launch(Lane::kShort, [this] { ++std::atomic_ref(*at(0)); }, Writes(written));
      ++enqueued;
      std::this_thread::yield();
    }
  });
  for (int turn = 0; turn < 30; ++turn) {
    const auto watched = ContentWatch::begin(block_, {});
    ASSERT_NE(watched, nullptr);
    while (!watched->is_settled() && !watched->has_ended()) std::this_thread::yield();
    if (watched->is_settled()) {
      char first = 0, second = 0;
      for (char* value : {&first, &second})
        stream_->call(Lane::kShort, [&] { *value = std::atomic_ref(*at(0)); }, Writes::nothing());
      EXPECT_TRUE(watched->has_ended() || first == second);
    }
    const int before = enqueued;  // the second launch from here on began after the watch
    while (enqueued < before + 2) std::this_thread::yield();
    EXPECT_TRUE(watched->has_ended());
  }
  stop = true;
  writer.join();
  other->synchronize();
}

}  // namespace
}  // namespace anynpu
