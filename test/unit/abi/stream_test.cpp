#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

using namespace std::chrono_literals;
using AclStream = AclTest;

constexpr int kLong = 60'000;  // ms: a limit that only a hang reaches

TEST_F(AclStream, ALaunchReturnsBeforeTheFunctionEnds) {
  aclrtStream stream = make_stream();
  std::atomic<bool> ended = false;
  launch(stream, [&] {
    std::this_thread::sleep_for(50ms);
    ended = true;
  });
  EXPECT_FALSE(ended);
  aclrtStreamStatus status = ACL_STREAM_STATUS_RESERVED;
  EXPECT_EQ(aclrtStreamQuery(stream, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_STREAM_STATUS_NOT_READY);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_TRUE(ended);
  EXPECT_EQ(aclrtStreamQuery(stream, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_STREAM_STATUS_COMPLETE);
}

TEST_F(AclStream, StreamsOverlap) {
  // Each function waits for all others: a runtime that serialises streams never gets here.
  constexpr int kStreams = 4;
  std::latch all(kStreams);
  std::vector<aclrtStream> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(make_stream());
    launch(streams.back(), [&] { all.arrive_and_wait(); });
  }
  for (aclrtStream stream : streams) EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_SUCCESS);
}

TEST_F(AclStream, WorkProgressesWhileNobodyWaits) {
  aclrtStream stream = make_stream();
  std::promise<void> reached;
  {
    Gate gate(stream);
    for (int i = 0; i < 50; ++i) launch(stream, [] {});
    launch(stream, [&] { reached.set_value(); });
  }
  EXPECT_EQ(reached.get_future().wait_for(60s), std::future_status::ready);
}

TEST_F(AclStream, WorkProgressesWhileSomeoneOnlyPolls) {
  aclrtStream stream = make_stream();
  std::atomic<int> done = 0;
  for (int i = 0; i < 50; ++i) launch(stream, [&] { ++done; });
  aclrtStreamStatus status = ACL_STREAM_STATUS_NOT_READY;
  const auto limit = std::chrono::steady_clock::now() + 60s;
  while (status != ACL_STREAM_STATUS_COMPLETE && std::chrono::steady_clock::now() < limit)
    ASSERT_EQ(aclrtStreamQuery(stream, &status), ACL_SUCCESS);
  EXPECT_EQ(done, 50);
}

TEST_F(AclStream, WorkOfAStreamRunsInOrder) {
  for (aclrtStream stream : {make_stream(), aclrtStream{nullptr}}) {
    std::vector<int> order, expected(200);  // no lock: the stream's order is the synchronisation
    std::iota(expected.begin(), expected.end(), 0);
    for (int i = 0; i < 200; ++i) launch(stream, [&order, i] { order.push_back(i); });
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(order, expected);
  }
}

TEST_F(AclStream, LimitsOfSynchronisationAreMilliseconds) {
  aclrtStream stream = make_stream();
  Gate gate(stream);
  expect_failure(aclrtSynchronizeStreamWithTimeout(stream, 5), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                 "timeout = 5 ms");
  expect_failure(aclrtSynchronizeStreamWithTimeout(stream, 0), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
                 "timeout = 0 ms");
  expect_failure(aclrtSynchronizeStreamWithTimeout(stream, -7), ACL_ERROR_INVALID_PARAM, "timeout is -7");
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, -1), ACL_SUCCESS);
}

TEST_F(AclStream, AnErrorIsReturnedOnceByTheNextSynchronisation) {
  aclrtStream stream = make_stream();
  std::atomic<bool> later = false;
  launch(stream, [] { throw std::runtime_error("the first failure"); });
  launch(stream, [&] { later = true; });
  expect_failure(aclrtSynchronizeStream(stream), ACL_ERROR_FAILURE, "the first failure");
  EXPECT_TRUE(later) << "the failure mode is to continue";
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
}

TEST_F(AclStream, StopOnFailureDropsWhatFollows) {
  aclrtStream stream = make_stream();
  EXPECT_EQ(aclrtSetStreamFailureMode(stream, ACL_STOP_ON_FAILURE), ACL_SUCCESS);
  std::atomic<int> later = 0;
  const auto fail_then_count = [&] {
    Gate gate(stream);
    launch(stream, [] { throw std::runtime_error("failed"); });
    const aclrtHostFunc count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    ASSERT_EQ(aclrtLaunchHostFunc(stream, count, &later), ACL_SUCCESS);
  };
  fail_then_count();
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_FAILURE);
  EXPECT_EQ(later, 0);
  EXPECT_EQ(aclrtSetStreamFailureMode(stream, ACL_CONTINUE_ON_FAILURE), ACL_SUCCESS);
  fail_then_count();
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_FAILURE);
  EXPECT_EQ(later, 1);
  (void)message();
  expect_failure(aclrtSetStreamFailureMode(stream, 2), ACL_ERROR_INVALID_PARAM, "mode is 2");
}

TEST_F(AclStream, AbortDropsWhatHasNotStarted) {
  aclrtStream stream = make_stream();
  static std::atomic<int> dropped = 0;
  Gate gate(stream);
  gate.wait_until_running();
  for (int i = 0; i < 10; ++i)
    ASSERT_EQ(aclrtLaunchHostFunc(stream, [](void*) { ++dropped; }, nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamAbort(stream), ACL_SUCCESS);
  gate.open();
  expect_failure(aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_ABORT, "dropped by an abort");
  EXPECT_EQ(dropped, 0);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << "the stream stays usable";
}

TEST_F(AclStream, DestroyedStreamsFinishTheirWorkUnlessForced) {
  aclrtStream stream = make_stream(), forced = make_stream();
  std::promise<void> ran;
  static std::atomic<bool> forced_ran = false;
  Gate gate(stream), forced_gate(forced);
  launch(stream, [&] { ran.set_value(); });
  ASSERT_EQ(aclrtLaunchHostFunc(forced, [](void*) { forced_ran = true; }, nullptr), ACL_SUCCESS);
  forced_gate.wait_until_running();
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStreamForce(forced), ACL_SUCCESS);
  gate.open();
  forced_gate.open();
  EXPECT_EQ(ran.get_future().wait_for(60s), std::future_status::ready);
  EXPECT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS) << "waits for all streams, destroyed ones too";
  EXPECT_FALSE(forced_ran);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
}

TEST_F(AclStream, PrioritiesAndFlags) {
  aclrtStream stream = nullptr;
  for (const uint32_t priority : {0u, 7u}) {
    EXPECT_EQ(aclrtCreateStreamWithConfig(&stream, priority, ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC),
              ACL_SUCCESS);
    EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  }
  expect_failure(aclrtCreateStreamWithConfig(&stream, 0, ACL_STREAM_PERSISTENT),
                 ACL_ERROR_FEATURE_UNSUPPORTED, "flag is 4");
  expect_failure(aclrtCreateStream(nullptr), ACL_ERROR_INVALID_PARAM, "stream is null");
}

TEST_F(AclStream, ConfigurationHandles) {
  aclrtStreamConfigHandle* config = aclrtCreateStreamConfigHandle();
  ASSERT_NE(config, nullptr);
  uint32_t priority = 3, flag = ACL_STREAM_FAST_LAUNCH;
  EXPECT_EQ(aclrtSetStreamConfigOpt(config, ACL_RT_STREAM_PRIORITY, &priority, sizeof(priority)),
            ACL_SUCCESS);
  EXPECT_EQ(aclrtSetStreamConfigOpt(config, ACL_RT_STREAM_FLAG, &flag, sizeof(flag)), ACL_SUCCESS);
  EXPECT_EQ(config->priority, 3u) << "the struct is public";
  EXPECT_EQ(config->flag, ACL_STREAM_FAST_LAUNCH);
  aclrtStream stream = nullptr;
  EXPECT_EQ(aclrtCreateStreamV2(&stream, config), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  config->flag = ACL_STREAM_PERSISTENT;
  EXPECT_EQ(aclrtCreateStreamV2(&stream, config), ACL_ERROR_FEATURE_UNSUPPORTED);
  (void)message();
  expect_failure(aclrtSetStreamConfigOpt(config, ACL_RT_STREAM_FLAG, &flag, 8), ACL_ERROR_INVALID_PARAM,
                 "valueSize 8");
  expect_failure(aclrtSetStreamConfigOpt(config, ACL_RT_STREAM_WORK_SIZE, &flag, 4),
                 ACL_ERROR_FEATURE_UNSUPPORTED, "attr is 1");
  EXPECT_EQ(aclrtDestroyStreamConfigHandle(config), ACL_SUCCESS);
  expect_failure(aclrtDestroyStreamConfigHandle(config), ACL_ERROR_RT_INVALID_HANDLE, "stream configuration");
  expect_failure(aclrtCreateStreamV2(&stream, nullptr), ACL_ERROR_INVALID_PARAM, "handle is null");
}

TEST_F(AclStream, IdsAreUnique) {
  aclrtStream first = make_stream(), second = make_stream();
  int32_t ids[3] = {};
  EXPECT_EQ(aclrtStreamGetId(first, &ids[0]), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamGetId(second, &ids[1]), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamGetId(nullptr, &ids[2]), ACL_SUCCESS);
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(ids[0], ids[2]);
}

TEST_F(AclStream, WildHandlesAreRefused) {
  int local = 0;
  aclrtEvent event = make_event();
  aclrtStream destroyed = make_stream();
  ASSERT_EQ(aclrtDestroyStream(destroyed), ACL_SUCCESS);
  expect_failure(aclrtDestroyStream(destroyed), ACL_ERROR_RT_INVALID_HANDLE, "it was destroyed");
  expect_failure(aclrtSynchronizeStream(event), ACL_ERROR_RT_INVALID_HANDLE, "is an event, not a stream");
  for (void* wild :
       {static_cast<void*>(&local), reinterpret_cast<void*>(1), reinterpret_cast<void*>(UINTPTR_MAX)}) {
    expect_failure(aclrtSynchronizeStream(wild), ACL_ERROR_RT_INVALID_HANDLE,
                   "not a stream that this library made");
    EXPECT_EQ(aclrtDestroyStream(wild), ACL_ERROR_RT_INVALID_HANDLE);
    EXPECT_EQ(aclrtRecordEvent(wild, nullptr), ACL_ERROR_RT_INVALID_HANDLE);
    EXPECT_EQ(aclrtSetCurrentContext(wild), ACL_ERROR_RT_INVALID_HANDLE);
    EXPECT_EQ(aclDestroyDataBuffer(static_cast<aclDataBuffer*>(wild)), ACL_ERROR_RT_INVALID_HANDLE);
    EXPECT_EQ(aclrtDestroyStreamConfigHandle(static_cast<aclrtStreamConfigHandle*>(wild)),
              ACL_ERROR_RT_INVALID_HANDLE);
    (void)message();
  }
  expect_failure(aclrtDestroyStream(nullptr), ACL_ERROR_INVALID_PARAM, "stream is null");
  expect_failure(aclrtLaunchHostFunc(nullptr, nullptr, nullptr), ACL_ERROR_INVALID_PARAM, "func is null");
}

TEST_F(AclStream, HandlesAreNeverUsedAgain) {
  aclrtStream first = make_stream();
  ASSERT_EQ(aclrtDestroyStream(first), ACL_SUCCESS);
  for (int i = 0; i < 1000; ++i) {
    aclrtStream stream = make_stream();
    ASSERT_NE(stream, first);
    ASSERT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  }
}

TEST_F(AclStream, DestroyingWhileOthersUseTheHandleIsSafe) {
  aclrtStream stream = make_stream();
  std::vector<std::thread> threads;
  std::atomic<int> destroyed = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
      while (aclrtLaunchHostFunc(stream, [](void*) {}, nullptr) == ACL_SUCCESS)
        if (aclrtDestroyStream(stream) == ACL_SUCCESS) ++destroyed;
      (void)aclrtSynchronizeStream(stream);
      EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
