#include "prof/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

#include "base/error.h"
#include "runtime/stream.h"

namespace anynpu {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  void TearDown() override { Trace::stop(); }
  const std::shared_ptr<Stream> stream_ = Stream::create(0), other_ = Stream::create(0);
};

TEST_F(TraceTest, HoldsTheTasksOfAllStreamsWithTheirTimes) {
  Trace::start();
  {
    const TaskLabel label("first", TaskKind::kKernel);
    stream_->launch(Lane::kHost, [] {});
  }
  {
    const TaskLabel label("second", TaskKind::kCopy, 12);
    other_->wait(stream_->record());
    other_->launch(Lane::kParallel, [] {});
  }
  ASSERT_TRUE(other_->synchronize());
  const auto tasks = Trace::stop();
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_STREQ(tasks[0].name, "first");
  EXPECT_EQ(tasks[0].kind, TaskKind::kKernel);
  EXPECT_EQ(tasks[0].stream, stream_->id());
  EXPECT_STREQ(tasks[1].name, "second");
  EXPECT_EQ(tasks[1].kind, TaskKind::kCopy);
  EXPECT_EQ(tasks[1].bytes, 12u);
  EXPECT_EQ(tasks[1].stream, other_->id());
  EXPECT_EQ(tasks[0].thread, gettid());
  EXPECT_NE(tasks[0].correlation, tasks[1].correlation);
  for (const TracedTask& task : tasks) {
    EXPECT_LE(task.enqueued, task.started);
    EXPECT_LE(task.started, task.ended);
  }
  EXPECT_LE(tasks[0].ended, tasks[1].started);  // which waited for it
}

TEST_F(TraceTest, TasksOutsideItAreInNone) {
  const TaskLabel label("work");
  stream_->launch(Lane::kShort, [] {});
  Trace::start();
  stream_->launch(Lane::kShort, [] {});
  EXPECT_EQ(Trace::stop().size(), 1u);
  stream_->launch(Lane::kShort, [] {});
  EXPECT_TRUE(Trace::stop().empty());
}

TEST_F(TraceTest, ATaskThatEndsInALaterTraceIsInNone) {
  std::atomic<bool> open = false;
  Trace::start();
  {
    const TaskLabel label("long");
    stream_->launch(Lane::kHost, [&] { open.wait(false); });
  }
  EXPECT_TRUE(Trace::stop().empty());
  Trace::start();
  open = true;
  open.notify_all();
  ASSERT_TRUE(stream_->synchronize());
  EXPECT_TRUE(Trace::stop().empty());
}

TEST_F(TraceTest, UnlabelledAndDroppedTasksAreInNone) {
  Trace::start();
  stream_->launch(Lane::kShort, [] {});
  std::atomic<bool> open = false;
  {
    const TaskLabel label("runs");
    stream_->launch(Lane::kHost, [&] { open.wait(false); });
  }
  {
    const TaskLabel label("dropped");
    stream_->launch(Lane::kShort, [] {});
  }
  stream_->abort(std::nullopt);
  open = true;
  open.notify_all();
  ASSERT_TRUE(stream_->synchronize());
  const auto tasks = Trace::stop();
  const auto names = [&] {
    std::vector<std::string> found;
    for (const TracedTask& task : tasks) found.emplace_back(task.name);
    return found;
  }();
  EXPECT_EQ(std::count(names.begin(), names.end(), "dropped"), 0);
  EXPECT_LE(names.size(), 1u);  // "runs", unless it had not started
}

TEST_F(TraceTest, AFailedTaskIsInIt) {
  Trace::start();
  const TaskLabel label("fails");
  stream_->launch(Lane::kHost, [] { raise(ErrorCode::kInternal, "on purpose"); });
  EXPECT_THROW(stream_->synchronize(), Error);
  EXPECT_EQ(Trace::stop().size(), 1u);
}

TEST_F(TraceTest, LabelsAndExternalNumbersNest) {
  Trace::start();
  const TaskLabel outer("outer");
  Trace::push_external(7);
  {
    const TaskLabel inner("inner");
    Trace::push_external(8);
    stream_->launch(Lane::kShort, [] {});
    Trace::pop_external();
  }
  stream_->launch(Lane::kShort, [] {});
  std::thread([&] {
    const TaskLabel label("elsewhere");
    stream_->launch(Lane::kShort, [] {});
  }).join();
  Trace::pop_external();
  Trace::pop_external();  // one too many changes nothing
  stream_->launch(Lane::kShort, [] {});
  const auto tasks = Trace::stop();
  ASSERT_EQ(tasks.size(), 4u);
  EXPECT_STREQ(tasks[0].name, "inner");
  EXPECT_EQ(tasks[0].external, 8u);
  EXPECT_STREQ(tasks[1].name, "outer");
  EXPECT_EQ(tasks[1].external, 7u);
  EXPECT_EQ(tasks[2].external, 0u);
  EXPECT_NE(tasks[2].thread, gettid());
  EXPECT_EQ(tasks[3].external, 0u);
}

TEST_F(TraceTest, OneAtATime) {
  Trace::start();
  EXPECT_THROW(Trace::start(), Error);
  EXPECT_TRUE(Trace::active());
}

}  // namespace
}  // namespace anynpu
