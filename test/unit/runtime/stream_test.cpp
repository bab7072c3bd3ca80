#include "runtime/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"

namespace anynpu {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::shared_ptr<Stream> make_stream(StreamConfig config = {}) { return Device::get(0).create_stream(config); }

/// A host task that holds its stream until the test lets it go.
class Gate {
 public:
  explicit Gate(Stream& stream) {
    stream.launch(Lane::kHost, [state = state_] {
      state->entered.count_down();
      state->open.wait();
    });
  }
  ~Gate() { open(); }
  void open() {
    if (!state_->opened.exchange(true)) state_->open.count_down();
  }
  void wait_until_running() { state_->entered.wait(); }

 private:
  struct State {
    std::latch entered{1}, open{1};
    std::atomic<bool> opened = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // the task may end after the gate
};

ErrorCode code_of(const std::function<void()>& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error was raised";
  return ErrorCode::kInternal;
}

TEST(Stream, RunsTasksOfAllLanesInOrder) {
  auto stream = make_stream();
  std::vector<int> order;  // no lock: the stream's order is the synchronisation
  std::vector<int> expected;
  for (int i = 0; i < 300; ++i) {
    stream->launch(static_cast<Lane>(i % 3), [&order, i] { order.push_back(i); });
    expected.push_back(i);
  }
  stream->synchronize();
  EXPECT_EQ(order, expected);
  EXPECT_TRUE(stream->idle());
}

TEST(Stream, LaunchReturnsBeforeTheTaskEnds) {
  auto stream = make_stream();
  Gate gate(*stream);
  std::atomic<bool> done = false;
  stream->launch(Lane::kShort, [&] { done = true; });  // must queue behind the gate and not run here
  EXPECT_FALSE(stream->idle());
  EXPECT_FALSE(done);
  gate.open();
  stream->synchronize();
  EXPECT_TRUE(done);
}

TEST(Stream, ShortWorkOnAnIdleStreamRunsInTheCaller) {
  auto stream = make_stream();
  std::thread::id thread;
  stream->launch(Lane::kShort, [&] { thread = std::this_thread::get_id(); });
  EXPECT_EQ(thread, std::this_thread::get_id());
}

TEST(Stream, ParallelWorkOfAllStreamsRunsOnOneThread) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(make_stream());
  for (int round = 0; round < 20; ++round)
    for (auto& stream : streams)
      stream->launch(Lane::kParallel, [&] {
        EXPECT_TRUE(Executor::on_compute_thread());
        std::lock_guard lock(mutex);
        threads.insert(std::this_thread::get_id());
      });
  for (auto& stream : streams) stream->synchronize();
  EXPECT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
}

TEST(Stream, HostWorkOfDifferentStreamsOverlaps) {
  // Each task waits for all others: a runtime that serialises streams never gets here.
  constexpr int kStreams = 6;
  std::latch all(kStreams);
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(make_stream());
    streams.back()->launch(Lane::kHost, [&] { all.arrive_and_wait(); });
  }
  for (auto& stream : streams) EXPECT_TRUE(stream->synchronize(60s));
}

TEST(Stream, AnotherStreamProgressesWhileOneIsHeld) {
  auto held = make_stream(), free = make_stream();
  Gate gate(*held);
  gate.wait_until_running();
  int value = 0;
  free->launch(Lane::kParallel, [&] { value = 7; });
  EXPECT_TRUE(free->synchronize(60s));
  EXPECT_EQ(value, 7);
  EXPECT_FALSE(held->idle());
}

TEST(Stream, QueuedWorkProgressesWhileNobodyWaits) {
  auto stream = make_stream();
  std::promise<void> reached;
  {
    Gate gate(*stream);
    for (int i = 0; i < 50; ++i) stream->launch(Lane::kShort, [] {});
    stream->launch(Lane::kShort, [&] { reached.set_value(); });
  }
  EXPECT_EQ(reached.get_future().wait_for(60s), std::future_status::ready);
}

TEST(Stream, QueuedWorkProgressesWhileSomeoneOnlyPolls) {
  auto stream = make_stream();
  std::atomic<int> done = 0;
  for (int i = 0; i < 50; ++i) stream->launch(i % 2 == 0 ? Lane::kParallel : Lane::kShort, [&] { ++done; });
  const auto limit = Clock::now() + 60s;
  while (!stream->idle() && Clock::now() < limit) {
  }
  EXPECT_EQ(done, 50);
}

TEST(Stream, SynchronizeGivesUpAtItsLimit) {
  auto stream = make_stream();
  Gate gate(*stream);
  EXPECT_FALSE(stream->synchronize(10ms));
  gate.open();
  EXPECT_TRUE(stream->synchronize(60s));
}

TEST(Stream, SynchronizeWaitsOnlyForEarlierWork) {
  auto stream = make_stream();
  std::atomic<bool> stop = false;
  std::thread producer([&] {
    while (!stop) stream->launch(Lane::kShort, [] {});
  });
  for (int i = 0; i < 100; ++i) stream->synchronize();
  stop = true;
  producer.join();
}

TEST(Stream, FirstErrorIsRaisedOnceAtTheNextSynchronisation) {
  auto stream = make_stream();
  int later = 0;
  stream->launch(Lane::kParallel, [] { raise(ErrorCode::kInvalidArgument, "first"); });
  stream->launch(Lane::kShort, [] { throw std::runtime_error("second"); });
  stream->launch(Lane::kShort, [&] { later = 1; });
  try {
    stream->synchronize();
    FAIL() << "the error was lost";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  EXPECT_EQ(later, 1) << "a failed task must not stop the following ones";
  EXPECT_TRUE(stream->synchronize()) << "the error must be raised once";
}

TEST(Stream, StopOnFailureDropsWhatFollows) {
  auto stream = make_stream({.stop_on_failure = true});
  int later = 0;
  stream->launch(Lane::kShort, [] { throw std::runtime_error("failed"); });
  stream->launch(Lane::kShort, [&] { ++later; });
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  EXPECT_EQ(later, 0);
  stream->launch(Lane::kShort, [&] { ++later; });
  stream->synchronize();
  EXPECT_EQ(later, 1);
}

TEST(Stream, CallReturnsWhenDoneAndPassesExceptionsOn) {
  auto stream = make_stream();
  for (Lane lane : {Lane::kShort, Lane::kParallel, Lane::kHost}) {
    std::vector<int> order;
    stream->launch(Lane::kHost, [&] { order.push_back(1); });
    stream->call(lane, [&] { order.push_back(2); });
    EXPECT_EQ(order, (std::vector{1, 2}));
    EXPECT_THROW(stream->call(lane, [] { throw std::out_of_range("mine"); }), std::out_of_range);
    EXPECT_TRUE(stream->synchronize()) << "an error that reached the caller stays with the caller";
  }
}

TEST(Stream, CallRaisesAnEarlierErrorInsteadOfRunning) {
  auto stream = make_stream();
  bool ran = false;
  stream->launch(Lane::kShort, [] { throw std::runtime_error("earlier"); });
  EXPECT_THROW(stream->call(Lane::kShort, [&] { ran = true; }), std::runtime_error);
  EXPECT_FALSE(ran);
}

TEST(Stream, CallFromItsOwnTaskRunsWithinThatTask) {
  auto stream = make_stream();
  std::vector<int> order;
  stream->launch(Lane::kHost, [&] {
    stream->call(Lane::kParallel, [&] { order.push_back(1); });
    order.push_back(2);
  });
  stream->synchronize();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(Stream, SynchronizingItselfFromItsOwnTaskIsAnError) {
  auto stream = make_stream();
  stream->launch(Lane::kHost, [&] { stream->synchronize(); });
  EXPECT_EQ(code_of([&] { stream->synchronize(); }), ErrorCode::kInvalidArgument);
}

TEST(Stream, TasksMayLaunchOnTheirOwnStream) {
  auto stream = make_stream();
  std::atomic<int> runs = 0;
  stream->launch(Lane::kShort, [&] {
    stream->launch(Lane::kShort, [&] { ++runs; });
    ++runs;
  });
  while (!stream->idle()) std::this_thread::yield();
  EXPECT_EQ(runs, 2);
}

TEST(Stream, AbortDropsWhatHasNotStarted) {
  auto stream = make_stream();
  Gate gate(*stream);
  gate.wait_until_running();
  int dropped = 0;
  Event event;
  for (int i = 0; i < 10; ++i) stream->launch(static_cast<Lane>(i % 3), [&] { ++dropped; });
  event.record(*stream);
  std::thread waiter([&] { EXPECT_EQ(code_of([&] { event.synchronize(); }), ErrorCode::kAborted); });
  stream->abort();
  EXPECT_FALSE(stream->idle()) << "the running task goes on";
  gate.open();
  EXPECT_EQ(code_of([&] { stream->synchronize(); }), ErrorCode::kAborted);
  waiter.join();
  EXPECT_EQ(dropped, 0);
  int after = 0;
  stream->launch(Lane::kParallel, [&] { after = 1; });
  stream->synchronize();
  EXPECT_EQ(after, 1);
}

TEST(Stream, AbortReleasesAStreamThatWaitsForAnEvent) {
  auto producer = make_stream(), consumer = make_stream();
  Gate gate(*producer);
  Event ready;
  ready.record(*producer);
  consumer->wait(ready);
  consumer->launch(Lane::kShort, [] {});
  EXPECT_FALSE(consumer->synchronize(5ms));
  consumer->abort();
  EXPECT_EQ(code_of([&] { consumer->synchronize(60s); }), ErrorCode::kAborted);
  gate.open();  // the old recording now resumes a stream that no longer waits for it
  producer->synchronize();
  EXPECT_TRUE(consumer->synchronize(60s));
}

TEST(Stream, ADroppedCallSaysSo) {
  auto stream = make_stream();
  Gate gate(*stream);
  gate.wait_until_running();
  bool ran = false;
  // The call first drains, so hold it in its own wait: abort from another thread while it is queued.
  std::thread caller([&] {
    EXPECT_THROW(
        {
          stream->launch(Lane::kParallel, [] {});
          stream->call(Lane::kParallel, [&] { ran = true; });
        },
        Error);
  });
  while (stream->synchronize(5ms)) {
  }
  std::this_thread::sleep_for(20ms);
  stream->abort();
  gate.open();
  caller.join();
  EXPECT_FALSE(ran);
}

TEST(Stream, OutlivesItsLastHandle) {
  std::promise<int> result;
  {
    auto stream = make_stream();
    Gate gate(*stream);
    stream->launch(Lane::kShort, [&] { result.set_value(3); });
    gate.wait_until_running();
    gate.open();
  }
  EXPECT_EQ(result.get_future().get(), 3);
}

TEST(Stream, IsIdleOnceItsLastEventIsReached) {
  auto stream = make_stream();
  for (int round = 0; round < 3000; ++round) {
    stream->launch(Lane::kParallel, [] {});
    const auto last = stream->record();
    while (!last->done()) std::this_thread::yield();
    ASSERT_TRUE(stream->idle()) << "in round " << round;
  }
}

TEST(Stream, ReachesItsEventsBeforeASynchronisationReturns) {
  auto stream = make_stream();
  for (int round = 0; round < 3000; ++round) {
    stream->launch(Lane::kParallel, [] {});
    const auto last = stream->record();
    stream->synchronize();
    ASSERT_TRUE(last->done()) << "in round " << round;
  }
}

TEST(Stream, MoreUrgentStreamsComeFirst) {
  // While the compute thread is held, streams of other priorities queue up for it.
  auto holder = make_stream();
  std::latch held(1), go(1);
  holder->launch(Lane::kParallel, [&] {
    held.count_down();
    go.wait();
  });
  held.wait();
  std::vector<int> order;
  std::vector<std::shared_ptr<Stream>> streams;
  for (int priority : {2, 0, 1}) {
    streams.push_back(make_stream({.priority = priority}));
    streams.back()->launch(Lane::kParallel, [&order, priority] { order.push_back(priority); });
  }
  go.count_down();
  for (auto& stream : streams) stream->synchronize();
  EXPECT_EQ(order, (std::vector{0, 1, 2}));
}

TEST(Stream, SurvivesManyThreadsLanesAndEvents) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  constexpr int kStreams = 5, kThreads = 8, kRounds = 300;
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(make_stream({.priority = i % 2}));
  std::array<std::atomic<int>, kStreams> inside = {}, runs = {};
  std::array<int, kStreams> launched = {};
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(seed + t);
      Event event;
      for (int round = 0; round < kRounds; ++round) {
        const int i = static_cast<int>(random() % kStreams);
        const auto task = [&, i] {
          EXPECT_EQ(++inside[i], 1) << "two tasks of one stream at a time";
          ++runs[i];
          --inside[i];
        };
        switch (random() % 5) {
          case 0:
            event.record(*streams[i]);
            break;
          case 1:
            streams[i]->wait(event);
            break;
          case 2:
            streams[i]->synchronize();
            break;
          case 3: {
            streams[i]->call(static_cast<Lane>(random() % 3), task);
            std::lock_guard lock(mutex);
            ++launched[i];
            break;
          }
          default: {
            streams[i]->launch(static_cast<Lane>(random() % 3), task);
            std::lock_guard lock(mutex);
            ++launched[i];
          }
        }
      }
    });
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(streams[i]->synchronize(120s));
    EXPECT_EQ(runs[i], launched[i]);
  }
}

}  // namespace
}  // namespace anynpu
