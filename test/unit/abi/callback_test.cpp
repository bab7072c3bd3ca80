#include <pthread.h>

#include <optional>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

using AclCallback = AclTest;

constexpr int kLong = 60'000;  // ms: a limit that only a hang reaches

/// A thread that runs the callbacks of streams until it is stopped.
class ReportThread {
 public:
  ReportThread() : thread_([this] { run(); }) { ready_.wait(); }
  ~ReportThread() {
    stop_ = true;
    thread_.join();
  }
  uint64_t id() const { return id_; }
  std::thread::id thread_id() const { return thread_.get_id(); }

 private:
  void run() {
    id_ = pthread_self();
    ready_.count_down();
    while (!stop_) (void)aclrtProcessReport(5);
  }

  std::atomic<bool> stop_ = false;
  std::latch ready_{1};
  uint64_t id_ = 0;
  std::thread thread_;
};

void launch_callback(aclrtStream stream, std::function<void()> function,
                     aclrtCallbackBlockType block = ACL_CALLBACK_BLOCK) {
  auto* closure = new std::function<void()>(std::move(function));
  const aclrtCallback run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  ASSERT_EQ(aclrtLaunchCallback(run, closure, block, stream), ACL_SUCCESS) << aclGetRecentErrMsg();
}

TEST_F(AclCallback, RunsInTheSubscribedThreadInTheOrderOfTheStream) {
  ReportThread thread;
  aclrtStream stream = make_stream();
  ASSERT_EQ(aclrtSubscribeReport(thread.id(), stream), ACL_SUCCESS);
  std::vector<int> order;
  std::optional<std::thread::id> ran_in;
  launch(stream, [&] { order.push_back(1); });
  launch_callback(stream, [&] {
    ran_in = std::this_thread::get_id();
    order.push_back(2);
  });
  launch(stream, [&] { order.push_back(3); });
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_SUCCESS);
  EXPECT_EQ(order, (std::vector{1, 2, 3}));
  EXPECT_EQ(ran_in, thread.thread_id());
  EXPECT_EQ(aclrtUnSubscribeReport(thread.id(), stream), ACL_SUCCESS) << message();
}

TEST_F(AclCallback, BlockHoldsTheStreamAndNoBlockDoesNot) {
  aclrtStream blocking = make_stream(), free = make_stream();
  const uint64_t self = pthread_self();
  ASSERT_EQ(aclrtSubscribeReport(self, blocking), ACL_SUCCESS);
  ASSERT_EQ(aclrtSubscribeReport(self, free), ACL_SUCCESS) << "one thread serves many streams";
  std::atomic<int> ran = 0, after_block = 0, after_free = 0;
  launch_callback(blocking, [&] { ++ran; }, ACL_CALLBACK_BLOCK);
  launch(blocking, [&] { ++after_block; });
  launch_callback(free, [&] { ++ran; }, ACL_CALLBACK_NO_BLOCK);
  launch(free, [&] { ++after_free; });
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(free, kLong), ACL_SUCCESS);
  EXPECT_EQ(after_free, 1);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(blocking, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
  EXPECT_EQ(ran, 0) << "the thread has not asked yet";
  EXPECT_EQ(after_block, 0);
  EXPECT_EQ(aclrtProcessReport(kLong), ACL_SUCCESS);
  EXPECT_EQ(aclrtProcessReport(-1), ACL_SUCCESS);
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(blocking, kLong), ACL_SUCCESS);
  EXPECT_EQ(after_block, 1);
  EXPECT_EQ(aclrtUnSubscribeReport(self, blocking), ACL_SUCCESS);
  EXPECT_EQ(aclrtUnSubscribeReport(self, free), ACL_SUCCESS);
}

TEST_F(AclCallback, OneThatIsDroppedAfterAFailureHoldsNoStream) {
  aclrtStream stream = make_stream();
  const uint64_t self = pthread_self();
  void* memory = nullptr;
  uint64_t actual = 0;
  constexpr size_t kSize = size_t{32} << 20;
  ASSERT_EQ(aclrtMalloc(&memory, kSize, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(aclrtSubscribeReport(self, stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetStreamFailureMode(stream, ACL_STOP_ON_FAILURE), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetOpExecuteTimeOutV2(1, &actual), ACL_SUCCESS);
  bool ran = false;
  {
    Gate gate(stream);
    ASSERT_EQ(aclrtMemsetAsync(memory, kSize, 1, kSize, stream), ACL_SUCCESS);  // longer than a microsecond
    const aclrtCallback set = [](void* flag) { *static_cast<bool*>(flag) = true; };
    ASSERT_EQ(aclrtLaunchCallback(set, &ran, ACL_CALLBACK_BLOCK, stream), ACL_SUCCESS) << message();
  }
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_ERROR_RT_TASK_TIMEOUT);
  EXPECT_FALSE(ran);
  EXPECT_EQ(aclrtUnSubscribeReport(self, stream), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSetOpExecuteTimeOutV2(0, &actual), ACL_SUCCESS);
}

TEST_F(AclCallback, SubscriptionsAreChecked) {
  aclrtStream stream = make_stream();
  const uint64_t self = pthread_self();
  static const aclrtCallback nothing = [](void*) {};
  expect_failure(aclrtLaunchCallback(nothing, nullptr, ACL_CALLBACK_BLOCK, stream),
                 ACL_ERROR_RT_STREAM_NO_CB_REG, "not subscribed");
  expect_failure(aclrtProcessReport(5), ACL_ERROR_RT_THREAD_SUBSCRIBE, "no stream is subscribed");
  expect_failure(aclrtUnSubscribeReport(self, stream), ACL_ERROR_RT_STREAM_NO_CB_REG, "not subscribed");
  ASSERT_EQ(aclrtSubscribeReport(self, stream), ACL_SUCCESS);
  expect_failure(aclrtSubscribeReport(self + 1, stream), ACL_ERROR_REPEAT_SUBSCRIBE, "already");
  expect_failure(aclrtUnSubscribeReport(self + 1, stream), ACL_ERROR_RT_STREAM_NO_CB_REG, "not subscribed");
  expect_failure(aclrtProcessReport(5), ACL_ERROR_RT_REPORT_TIMEOUT, "timeout = 5");
  expect_failure(aclrtProcessReport(-3), ACL_ERROR_INVALID_PARAM, "timeout is -3");
  expect_failure(aclrtLaunchCallback(nullptr, nullptr, ACL_CALLBACK_BLOCK, stream), ACL_ERROR_INVALID_PARAM,
                 "fn is null");
  expect_failure(aclrtLaunchCallback(nothing, nullptr, static_cast<aclrtCallbackBlockType>(2), stream),
                 ACL_ERROR_INVALID_PARAM, "blockType is 2");
  ASSERT_EQ(aclrtLaunchCallback(nothing, nullptr, ACL_CALLBACK_NO_BLOCK, stream), ACL_SUCCESS);
  expect_failure(aclrtUnSubscribeReport(self, stream), ACL_ERROR_RT_PARAM_INVALID, "1 callbacks");
  EXPECT_EQ(aclrtProcessReport(kLong), ACL_SUCCESS);
  EXPECT_EQ(aclrtUnSubscribeReport(self, stream), ACL_SUCCESS);
}

TEST_F(AclCallback, EndingTheLastSubscriptionWakesTheThread) {
  aclrtStream stream = make_stream();
  std::latch ready(1), subscribed(1);
  std::atomic<uint64_t> id = 0;
  std::atomic<aclError> status = ACL_SUCCESS;
  std::thread thread([&] {
    id = pthread_self();
    ready.count_down();
    subscribed.wait();
    status = aclrtProcessReport(-1);
  });
  ready.wait();
  ASSERT_EQ(aclrtSubscribeReport(id, stream), ACL_SUCCESS);
  subscribed.count_down();
  EXPECT_EQ(aclrtUnSubscribeReport(id, stream), ACL_SUCCESS);
  thread.join();
  EXPECT_EQ(status, ACL_ERROR_RT_THREAD_SUBSCRIBE);
}

TEST_F(AclCallback, AbortDropsCallbacksThatTheStreamHasNotReached) {
  aclrtStream stream = make_stream();
  const uint64_t self = pthread_self();
  ASSERT_EQ(aclrtSubscribeReport(self, stream), ACL_SUCCESS);
  Gate gate(stream);
  gate.wait_until_running();
  ASSERT_EQ(
      aclrtLaunchCallback([](void*) { ADD_FAILURE() << "was dropped"; }, nullptr, ACL_CALLBACK_BLOCK, stream),
      ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamAbort(stream), ACL_SUCCESS);
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_ERROR_RT_STREAM_ABORT);
  EXPECT_EQ(aclrtUnSubscribeReport(self, stream), ACL_SUCCESS) << message();
}

TEST_F(AclCallback, AnExceptionReachesTheThreadThatRanTheCallback) {
  aclrtStream stream = make_stream();
  ASSERT_EQ(aclrtSubscribeReport(pthread_self(), stream), ACL_SUCCESS);
  launch_callback(stream, [] { throw std::runtime_error("the callback failed"); });
  expect_failure(aclrtProcessReport(kLong), ACL_ERROR_FAILURE, "the callback failed");
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_SUCCESS) << "the stream goes on";
  EXPECT_EQ(aclrtUnSubscribeReport(pthread_self(), stream), ACL_SUCCESS);
}

TEST_F(AclCallback, SurvivesManyStreamsAndThreads) {
  constexpr int kThreads = 3, kStreams = 6, kRounds = 100;
  std::vector<std::unique_ptr<ReportThread>> threads;
  for (int i = 0; i < kThreads; ++i) threads.push_back(std::make_unique<ReportThread>());
  std::vector<aclrtStream> streams;
  std::atomic<int> ran = 0;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(make_stream());
    ASSERT_EQ(aclrtSubscribeReport(threads[i % kThreads]->id(), streams[i]), ACL_SUCCESS);
  }
  for (int round = 0; round < kRounds; ++round)
    for (int i = 0; i < kStreams; ++i)
      launch_callback(
          streams[i], [&] { ++ran; }, round % 2 == 0 ? ACL_CALLBACK_BLOCK : ACL_CALLBACK_NO_BLOCK);
  for (int i = 0; i < kStreams; ++i) {
    launch_callback(streams[i],
                    [] {});  // the thread has run all earlier ones when the stream has passed this
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(streams[i], kLong), ACL_SUCCESS);
    EXPECT_EQ(aclrtUnSubscribeReport(threads[i % kThreads]->id(), streams[i]), ACL_SUCCESS) << message();
  }
  EXPECT_EQ(ran, kStreams * kRounds);
}

TEST_F(AclCallback, SubscriptionsEndWithTheirStreams) {
  const uint64_t self = pthread_self();
  int ran = 0;
  aclrtStream stream = make_stream();
  ASSERT_EQ(aclrtSubscribeReport(self, stream), ACL_SUCCESS);
  launch_callback(stream, [&] { ++ran; }, ACL_CALLBACK_NO_BLOCK);
  ASSERT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtProcessReport(kLong), ACL_SUCCESS) << "what was launched still runs";
  EXPECT_EQ(ran, 1);
  expect_failure(aclrtProcessReport(kLong), ACL_ERROR_RT_THREAD_SUBSCRIBE, "no stream is subscribed");

  ASSERT_EQ(aclrtSubscribeReport(self, stream = make_stream()), ACL_SUCCESS);
  ASSERT_EQ(aclrtDestroyStreamForce(stream), ACL_SUCCESS);
  expect_failure(aclrtProcessReport(kLong), ACL_ERROR_RT_THREAD_SUBSCRIBE, "no stream is subscribed");

  for (const bool with_default : {true, false}) {
    ASSERT_EQ(aclrtSubscribeReport(self, with_default ? nullptr : make_stream()), ACL_SUCCESS);
    ASSERT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    expect_failure(aclrtProcessReport(kLong), ACL_ERROR_RT_THREAD_SUBSCRIBE, "no stream is subscribed");
  }
}

}  // namespace
