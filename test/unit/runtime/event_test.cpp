#include "runtime/event.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"

namespace anynpu {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<Stream> make_stream() { return Device::get(0).create_stream(); }

TEST(Event, OrdersWorkOfTwoStreams) {
  auto producer = make_stream(), consumer = make_stream();
  Event ready;
  std::vector<int> order;
  producer->launch(Lane::kHost, [&] {
    std::this_thread::sleep_for(5ms);
    order.push_back(1);
  });
  ready.record(*producer);
  consumer->wait(ready);
  consumer->launch(Lane::kShort, [&] { order.push_back(2); });
  EXPECT_FALSE(consumer->idle());
  consumer->synchronize();
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_TRUE(ready.done());
}

TEST(Event, NeverRecordedHoldsNobody) {
  Event event;
  auto stream = make_stream();
  stream->wait(event);
  EXPECT_TRUE(stream->idle());
  EXPECT_TRUE(event.done());
  EXPECT_FALSE(event.recorded());
  EXPECT_TRUE(event.synchronize());
}

TEST(Event, OnItsOwnStreamHoldsNobody) {
  Event event;
  auto stream = make_stream();
  stream->launch(Lane::kParallel, [] {});
  event.record(*stream);
  stream->wait(event);
  EXPECT_TRUE(stream->synchronize(60s));
}

TEST(Event, RecordingAgainMovesThePointForLaterWaitsOnly) {
  auto first = make_stream(), second = make_stream(), early = make_stream(), late = make_stream();
  std::latch go(1);
  Event event;
  event.record(*first);  // done at once
  early->wait(event);
  second->launch(Lane::kHost, [&] { go.wait(); });
  event.record(*second);
  late->wait(event);
  int early_runs = 0, late_runs = 0;
  early->launch(Lane::kShort, [&] { ++early_runs; });
  late->launch(Lane::kShort, [&] { ++late_runs; });
  EXPECT_TRUE(early->synchronize(60s));
  EXPECT_EQ(early_runs, 1);
  EXPECT_FALSE(late->synchronize(5ms));
  EXPECT_EQ(late_runs, 0);
  EXPECT_FALSE(event.done());
  go.count_down();
  EXPECT_TRUE(late->synchronize(60s));
  EXPECT_EQ(late_runs, 1);
}

TEST(Event, ManyStreamsMayWaitForOne) {
  auto producer = make_stream();
  std::latch go(1);
  producer->launch(Lane::kHost, [&] { go.wait(); });
  Event event;
  event.record(*producer);
  std::vector<std::shared_ptr<Stream>> consumers;
  std::atomic<int> runs = 0;
  for (int i = 0; i < 16; ++i) {
    consumers.push_back(make_stream());
    consumers.back()->wait(event);
    consumers.back()->launch(static_cast<Lane>(i % 3), [&] { ++runs; });
  }
  EXPECT_EQ(runs, 0);
  go.count_down();
  for (auto& consumer : consumers) EXPECT_TRUE(consumer->synchronize(60s));
  EXPECT_EQ(runs, 16);
}

TEST(Event, MayBeDestroyedWhilePending) {
  auto producer = make_stream(), consumer = make_stream();
  std::latch go(1);
  producer->launch(Lane::kHost, [&] { go.wait(); });
  int runs = 0;
  {
    Event event;
    event.record(*producer);
    consumer->wait(event);
  }
  consumer->launch(Lane::kShort, [&] { ++runs; });
  go.count_down();
  consumer->synchronize();
  EXPECT_EQ(runs, 1);
}

TEST(Event, SynchronizeGivesUpAtItsLimit) {
  auto stream = make_stream();
  std::latch go(1);
  stream->launch(Lane::kHost, [&] { go.wait(); });
  Event event;
  event.record(*stream);
  EXPECT_FALSE(event.synchronize(5ms));
  go.count_down();
  EXPECT_TRUE(event.synchronize(60s));
}

TEST(Event, SynchronizeRaisesTheErrorOfItsStream) {
  auto stream = make_stream();
  Event before, after;
  before.record(*stream);
  stream->launch(Lane::kParallel, [] { raise(ErrorCode::kInvalidArgument, "in a task"); });
  after.record(*stream);
  EXPECT_TRUE(before.synchronize());
  EXPECT_THROW(after.synchronize(), Error);
  EXPECT_THROW(stream->synchronize(), Error);
}

TEST(Event, ElapsedTimeIsThatBetweenThePoints) {
  auto stream = make_stream();
  Event start, end;
  start.record(*stream);
  stream->launch(Lane::kHost, [] { std::this_thread::sleep_for(20ms); });
  end.record(*stream);
  EXPECT_THROW(start.elapsed_ms(end), Error) << "not complete";
  end.synchronize();
  EXPECT_GE(start.elapsed_ms(end), 20.0);
  EXPECT_LE(end.elapsed_ms(start), -20.0);
}

TEST(Event, ElapsedTimeNeedsTimingAndRecordings) {
  auto stream = make_stream();
  Event timed, never, untimed(/*timing=*/false);
  timed.record(*stream);
  untimed.record(*stream);
  EXPECT_THROW(timed.elapsed_ms(never), Error);
  EXPECT_THROW(timed.elapsed_ms(untimed), Error);
  timed.reset();
  EXPECT_FALSE(timed.recorded());
  EXPECT_THROW(timed.elapsed_ms(timed), Error);
}

}  // namespace
}  // namespace anynpu
