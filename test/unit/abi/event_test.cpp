#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

using namespace std::chrono_literals;
using AclEvent = AclTest;

constexpr int kLong = 60'000;  // ms: a limit that only a hang reaches

aclrtEventRecordedStatus recorded_status(aclrtEvent event) {
  auto status = static_cast<aclrtEventRecordedStatus>(-1);
  EXPECT_EQ(aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
  aclrtEventStatus older = ACL_EVENT_STATUS_RESERVED;
  EXPECT_EQ(aclrtQueryEvent(event, &older), ACL_SUCCESS);
  EXPECT_EQ(older == ACL_EVENT_STATUS_COMPLETE, status == ACL_EVENT_RECORDED_STATUS_COMPLETE);
  return status;
}

TEST_F(AclEvent, OrdersWorkOfDifferentStreams) {
  aclrtStream producer = make_stream(), consumer = make_stream();
  aclrtEvent ready = make_event();
  std::vector<int> order;  // no lock: the event is the synchronisation
  {
    Gate gate(producer);
    launch(producer, [&] { order.push_back(1); });
    EXPECT_EQ(aclrtRecordEvent(ready, producer), ACL_SUCCESS);
    EXPECT_EQ(aclrtStreamWaitEvent(consumer, ready), ACL_SUCCESS);
    launch(consumer, [&] { order.push_back(2); });
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(consumer, 10), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
  }
  EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS);
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST_F(AclEvent, WaitingForAnEventThatWasNeverRecordedDoesNotWait) {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event();
  EXPECT_EQ(aclrtStreamWaitEvent(stream, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, kLong), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
  EXPECT_EQ(recorded_status(event), ACL_EVENT_RECORDED_STATUS_NOT_READY) << "as is documented";
}

TEST_F(AclEvent, RecordingAgainMovesThePoint) {
  aclrtStream first = make_stream(), second = make_stream(), waits_for_first = make_stream();
  aclrtEvent event = make_event();
  Gate first_gate(first), second_gate(second);
  EXPECT_EQ(aclrtRecordEvent(event, first), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(waits_for_first, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtRecordEvent(event, second), ACL_SUCCESS);
  first_gate.open();
  EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(waits_for_first, kLong), ACL_SUCCESS)
      << "who waits already waits for the point of then";
  EXPECT_EQ(recorded_status(event), ACL_EVENT_RECORDED_STATUS_NOT_READY);
  second_gate.open();
  EXPECT_EQ(aclrtSynchronizeEventWithTimeout(event, kLong), ACL_SUCCESS);
  EXPECT_EQ(recorded_status(event), ACL_EVENT_RECORDED_STATUS_COMPLETE);
}

TEST_F(AclEvent, ResetMakesItAsIfNeverRecorded) {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event();
  EXPECT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_EQ(recorded_status(event), ACL_EVENT_RECORDED_STATUS_COMPLETE);
  EXPECT_EQ(aclrtResetEvent(event, stream), ACL_SUCCESS);
  EXPECT_EQ(recorded_status(event), ACL_EVENT_RECORDED_STATUS_NOT_READY);
  EXPECT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
  EXPECT_EQ(recorded_status(event), ACL_EVENT_RECORDED_STATUS_COMPLETE);
}

TEST_F(AclEvent, MayBeDestroyedWhilePending) {
  aclrtStream producer = make_stream(), consumer = make_stream();
  aclrtEvent event = make_event();
  std::atomic<bool> produced = false;
  std::atomic<bool> in_order = false;
  Gate gate(producer);
  launch(producer, [&] { produced = true; });
  EXPECT_EQ(aclrtRecordEvent(event, producer), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(consumer, event), ACL_SUCCESS);
  launch(consumer, [&] { in_order = produced.load(); });
  std::thread waiter([event] { (void)aclrtSynchronizeEvent(event); });
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  gate.open();
  waiter.join();
  EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS);
  EXPECT_TRUE(in_order);
  expect_failure(aclrtDestroyEvent(event), ACL_ERROR_RT_INVALID_HANDLE, "it was destroyed");
  expect_failure(aclrtRecordEvent(event, producer), ACL_ERROR_RT_INVALID_HANDLE, "it was destroyed");
}

TEST_F(AclEvent, SynchronisationGivesUpAtItsLimit) {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event();
  Gate gate(stream);
  EXPECT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
  expect_failure(aclrtSynchronizeEventWithTimeout(event, 5), ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "timeout = 5");
  expect_failure(aclrtSynchronizeEventWithTimeout(event, -2), ACL_ERROR_INVALID_PARAM, "timeout is -2");
  gate.open();
  EXPECT_EQ(aclrtSynchronizeEventWithTimeout(event, -1), ACL_SUCCESS);
}

TEST_F(AclEvent, AFailureBeforeThePointIsTold) {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event();
  launch(stream, [] { throw std::runtime_error("before the point"); });
  EXPECT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
  expect_failure(aclrtSynchronizeEvent(event), ACL_ERROR_FAILURE, "before the point");
  auto status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
  expect_failure(aclrtQueryEventStatus(event, &status), ACL_ERROR_FAILURE, "before the point");
  EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_NOT_READY) << "as is documented for failed work";
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_FAILURE);
}

TEST_F(AclEvent, AbortReachesThoseWhoWait) {
  aclrtStream stream = make_stream();
  aclrtEvent event = make_event();
  Gate gate(stream);
  gate.wait_until_running();
  ASSERT_EQ(aclrtLaunchHostFunc(stream, [](void*) { ADD_FAILURE() << "was dropped"; }, nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamAbort(stream), ACL_SUCCESS);
  gate.open();
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_ERROR_RT_STREAM_ABORT);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_STREAM_ABORT);
}

TEST_F(AclEvent, TimeIsThatBetweenThePoints) {
  using Clock = std::chrono::steady_clock;
  aclrtStream stream = make_stream();
  aclrtEvent start = make_event(), end = make_event();
  Clock::time_point inside[2];
  const auto before = Clock::now();
  EXPECT_EQ(aclrtRecordEvent(start, stream), ACL_SUCCESS);
  launch(stream, [&] {
    inside[0] = Clock::now();
    std::this_thread::sleep_for(20ms);
    inside[1] = Clock::now();
  });
  EXPECT_EQ(aclrtRecordEvent(end, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeEvent(end), ACL_SUCCESS);
  const auto after = Clock::now();

  float ms = 0;
  EXPECT_EQ(aclrtEventElapsedTime(&ms, start, end), ACL_SUCCESS);
  using Milliseconds = std::chrono::duration<float, std::milli>;
  EXPECT_GE(ms, Milliseconds(inside[1] - inside[0]).count() * 0.999f);
  EXPECT_LE(ms, Milliseconds(after - before).count() * 1.001f);

  uint64_t start_us = 0, end_us = 0;
  EXPECT_EQ(aclrtEventGetTimestamp(start, &start_us), ACL_SUCCESS);
  EXPECT_EQ(aclrtEventGetTimestamp(end, &end_us), ACL_SUCCESS);
  EXPECT_NEAR(static_cast<double>(end_us - start_us), ms * 1000, 2 + ms * 0.001);
  EXPECT_LE(std::chrono::microseconds(end_us), after.time_since_epoch()) << "since the start of the system";
}

TEST_F(AclEvent, TimeThatIsNotThereIsAnError) {
  aclrtStream stream = make_stream();
  aclrtEvent first = make_event(), second = make_event(), unrecorded = make_event(), pending = make_event();
  aclrtEvent untimed = make_event(ACL_EVENT_SYNC);
  for (aclrtEvent event : {first, second, untimed}) EXPECT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  launch(stream, [] { std::this_thread::sleep_for(1ms); });
  EXPECT_EQ(aclrtRecordEvent(second, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  Gate gate(stream);
  EXPECT_EQ(aclrtRecordEvent(pending, stream), ACL_SUCCESS);
  float ms = 0;
  expect_failure(aclrtEventElapsedTime(&ms, first, untimed), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                 "endEvent was made without ACL_EVENT_TIME_LINE");
  expect_failure(aclrtEventElapsedTime(&ms, unrecorded, first), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID,
                 "startEvent was never recorded");
  expect_failure(aclrtEventElapsedTime(&ms, first, pending), ACL_ERROR_RT_EVENT_NOT_COMPLETE, "endEvent");
  expect_failure(aclrtEventElapsedTime(&ms, second, first), ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL, "before");
  expect_failure(aclrtEventElapsedTime(nullptr, first, second), ACL_ERROR_INVALID_PARAM, "ms is null");
  EXPECT_EQ(aclrtEventElapsedTime(&ms, first, second), ACL_SUCCESS);
  EXPECT_GE(ms, 1.0f);
}

TEST_F(AclEvent, FlagsSayWhatAnEventIsFor) {
  aclrtEvent event = nullptr;
  for (const uint32_t flag : {ACL_EVENT_SYNC, ACL_EVENT_TIME_LINE, ACL_EVENT_CAPTURE_STREAM_PROGRESS,
                              ACL_EVENT_EXTERNAL, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE}) {
    EXPECT_EQ(aclrtCreateEventWithFlag(&event, flag), ACL_SUCCESS);
    EXPECT_EQ(aclrtRecordEvent(event, nullptr), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
    const bool waitable = (flag & (ACL_EVENT_SYNC | ACL_EVENT_EXTERNAL)) != 0;
    EXPECT_EQ(aclrtStreamWaitEvent(nullptr, event), waitable ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID)
        << flag;
    EXPECT_EQ(aclrtResetEvent(event, nullptr), waitable ? ACL_SUCCESS : ACL_ERROR_RT_PARAM_INVALID) << flag;
    EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
  }
  EXPECT_NE(message().find("ACL_EVENT_SYNC"), std::string::npos);
  expect_failure(aclrtCreateEventWithFlag(&event, 0x100), ACL_ERROR_INVALID_PARAM, "flag is 256");
  EXPECT_EQ(aclrtCreateEvent(&event), ACL_SUCCESS) << "for waits and for time";
  float ms = -1;
  EXPECT_EQ(aclrtRecordEvent(event, nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(nullptr, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtEventElapsedTime(&ms, event, event), ACL_SUCCESS);
  EXPECT_EQ(ms, 0.0f);
  EXPECT_EQ(aclrtDestroyEvent(event), ACL_SUCCESS);
}

TEST_F(AclEvent, WaitStatusTellsWhetherStreamsStillWait) {
  aclrtStream producer = make_stream(), consumer = make_stream(), busy = make_stream();
  aclrtEvent event = make_event();
  aclrtEventWaitStatus status = ACL_EVENT_WAIT_STATUS_RESERVED;
  EXPECT_EQ(aclrtQueryEventWaitStatus(event, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_WAIT_STATUS_COMPLETE) << "nobody waits";
  Gate gate(producer), busy_gate(busy);
  EXPECT_EQ(aclrtRecordEvent(event, producer), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(consumer, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtStreamWaitEvent(busy, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEventWaitStatus(event, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_WAIT_STATUS_NOT_READY);
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEventWaitStatus(event, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_WAIT_STATUS_NOT_READY) << "one stream has not come to its wait";
  busy_gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(busy), ACL_SUCCESS);
  EXPECT_EQ(aclrtQueryEventWaitStatus(event, &status), ACL_SUCCESS);
  EXPECT_EQ(status, ACL_EVENT_WAIT_STATUS_COMPLETE);
}

TEST_F(AclEvent, ReachesAcrossDevices) {
  uint32_t devices = 0;
  ASSERT_EQ(aclrtGetDeviceCount(&devices), ACL_SUCCESS);
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  aclrtStream producer = make_stream();
  aclrtEvent event = make_event();
  std::vector<int> order;
  Gate gate(producer);
  launch(producer, [&] { order.push_back(1); });
  EXPECT_EQ(aclrtRecordEvent(event, producer), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
  aclrtStream consumer = make_stream();
  EXPECT_EQ(aclrtStreamWaitEvent(consumer, event), ACL_SUCCESS);
  expect_failure(aclrtRecordEvent(event, producer), ACL_ERROR_RT_STREAM_CONTEXT, "belongs to device 0");
  launch(consumer, [&] { order.push_back(2); });
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS);
  EXPECT_EQ(order, (std::vector{1, 2}));
  EXPECT_EQ(aclrtResetDevice(1), ACL_SUCCESS);
}

}  // namespace
