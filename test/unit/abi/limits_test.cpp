// Limits of time and cores, values that streams wait for, and reports of failed tasks.

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

class AclLimits : public AclTest {
 protected:
  void TearDown() override {
    uint64_t actual = 0;
    EXPECT_EQ(aclrtSetOpWaitTimeout(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetOpExecuteTimeOutV2(0, &actual), ACL_SUCCESS);
    EXPECT_EQ(aclrtSetExceptionInfoCallback(nullptr), ACL_SUCCESS);
    AclTest::TearDown();
  }
  static uint64_t* values(std::vector<uint64_t> host) {
    void* memory = nullptr;
    const size_t size = host.size() * sizeof(uint64_t);
    EXPECT_EQ(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpy(memory, size, host.data(), size, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    return static_cast<uint64_t*>(memory);
  }
  static uint64_t value(const uint64_t* memory) {
    uint64_t host = 0;
    EXPECT_EQ(aclrtMemcpy(&host, sizeof(host), memory, sizeof(host), ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    return host;
  }
  /// A task that takes far longer than a microsecond.
  static void launch_long_task(aclrtStream stream) {
    constexpr size_t kSize = size_t{32} << 20;
    void* memory = nullptr;
    ASSERT_EQ(aclrtMalloc(&memory, kSize, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << message();
    ASSERT_EQ(aclrtMemsetAsync(memory, kSize, 1, kSize, stream), ACL_SUCCESS) << message();
  }
};

struct Report {
  uint32_t task, stream, thread, device, code;
};
std::mutex reports_mutex;
std::vector<Report> reports;
const aclrtExceptionInfo* last_info = nullptr;

void keep_report(aclrtExceptionInfo* info) {
  std::lock_guard lock(reports_mutex);
  reports.push_back({aclrtGetTaskIdFromExceptionInfo(info), aclrtGetStreamIdFromExceptionInfo(info),
                     aclrtGetThreadIdFromExceptionInfo(info), aclrtGetDeviceIdFromExceptionInfo(info),
                     aclrtGetErrorCodeFromExceptionInfo(info)});
  last_info = info;
}

TEST_F(AclLimits, AWaitThatLastsTooLongIsAnErrorOfItsStream) {
  aclrtStream producer = make_stream(), consumer = make_stream();
  aclrtEvent event = make_event();
  ASSERT_EQ(aclrtSetOpWaitTimeout(1), ACL_SUCCESS);
  Gate gate(producer);
  ASSERT_EQ(aclrtRecordEvent(event, producer), ACL_SUCCESS);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(aclrtStreamWaitEvent(consumer, event), ACL_SUCCESS);
  bool ran = false;
  launch(consumer, [&] { ran = true; });
  expect_failure(aclrtSynchronizeStream(consumer), ACL_ERROR_RT_WAIT_TIMEOUT,
                 "longer than the limit of 1000 ms");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_TRUE(ran) << "by default, failures do not stop a stream";
  EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS) << "the error was told";

  ASSERT_EQ(aclrtSetOpWaitTimeout(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtStreamWaitEvent(consumer, event), ACL_SUCCESS);
  gate.open();
  EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS);
}

TEST_F(AclLimits, AWaitWithinItsLimitIsNone) {
  aclrtStream producer = make_stream(), consumer = make_stream();
  aclrtEvent event = make_event();
  ASSERT_EQ(aclrtSetOpWaitTimeout(100), ACL_SUCCESS);
  {
    Gate gate(producer);
    ASSERT_EQ(aclrtRecordEvent(event, producer), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamWaitEvent(consumer, event), ACL_SUCCESS);
  }
  EXPECT_EQ(aclrtSynchronizeStream(consumer), ACL_SUCCESS);
}

TEST_F(AclLimits, ATaskThatRunsTooLongIsAnErrorOfItsStream) {
  aclrtStream stream = make_stream();
  uint64_t actual = 0;
  ASSERT_EQ(aclrtSetOpExecuteTimeOutV2(1, &actual), ACL_SUCCESS);
  EXPECT_EQ(actual, 1u);
  launch_long_task(stream);
  expect_failure(aclrtSynchronizeStream(stream), ACL_ERROR_RT_TASK_TIMEOUT, "microseconds; the limit is 1");
  ASSERT_EQ(aclrtSetOpExecuteTimeOut(1000), ACL_SUCCESS);
  launch_long_task(stream);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << message();
  ASSERT_EQ(aclrtSetOpExecuteTimeOutV2(UINT64_MAX, &actual), ACL_SUCCESS);
  EXPECT_EQ(actual, uint64_t{INT64_MAX} / 1000);
  launch_long_task(stream);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << message();
  expect_failure(aclrtSetOpExecuteTimeOutV2(1, nullptr), ACL_ERROR_INVALID_PARAM, "actualTimeout is null");
}

TEST_F(AclLimits, FailuresAreReported) {
  aclrtStream stream = make_stream();
  int32_t id = 0;
  uint64_t actual = 0;
  ASSERT_EQ(aclrtStreamGetId(stream, &id), ACL_SUCCESS);
  reports.clear();
  ASSERT_EQ(aclrtSetExceptionInfoCallback(keep_report), ACL_SUCCESS);
  launch(stream, [] {});
  ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetOpExecuteTimeOutV2(1, &actual), ACL_SUCCESS);
  launch_long_task(stream);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_TASK_TIMEOUT);
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].task, 2u);
  EXPECT_EQ(reports[0].stream, static_cast<uint32_t>(id));
  EXPECT_EQ(reports[0].thread, static_cast<uint32_t>(gettid()));
  EXPECT_EQ(reports[0].device, 0u);
  EXPECT_EQ(reports[0].code, uint32_t{ACL_ERROR_RT_TASK_TIMEOUT});
  (void)message();
  EXPECT_EQ(aclrtGetTaskIdFromExceptionInfo(last_info), UINT32_MAX)
      << "a report lives as long as its callback";
  EXPECT_NE(message().find("not the report of a failed task"), std::string::npos);
  EXPECT_EQ(aclrtGetErrorCodeFromExceptionInfo(nullptr), UINT32_MAX);
  ASSERT_EQ(aclrtSetExceptionInfoCallback(nullptr), ACL_SUCCESS);
  launch_long_task(stream);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_TASK_TIMEOUT);
  EXPECT_EQ(reports.size(), 1u);
}

struct ReportThatUsesTheDevice {
  static inline void *freed = nullptr, *copied = nullptr;
  static inline aclrtStream stream = nullptr;
  static inline aclError of_free, of_copy, of_enqueued, of_own_stream, of_device;
  static inline std::atomic<int> calls;
  static inline char byte;

  static void report(aclrtExceptionInfo*) {
    ++calls;
    uint64_t actual = 0;
    EXPECT_EQ(aclrtSetOpExecuteTimeOutV2(0, &actual), ACL_SUCCESS);  // or its own work may fail too
    of_free = aclrtSetDevice(0) == ACL_SUCCESS ? aclrtFree(freed) : ACL_ERROR_FAILURE;
    of_copy = aclrtMemcpy(&byte, 1, copied, 1, ACL_MEMCPY_DEVICE_TO_HOST);
    of_enqueued = aclrtMemsetAsync(copied, 1, 7, 1, stream);
    of_own_stream = aclrtSynchronizeStream(stream);
    of_device = aclrtSynchronizeDevice();
  }
};

TEST_F(AclLimits, AReportMayUseTheDeviceButNotAwaitItsStream) {
  using Report = ReportThatUsesTheDevice;
  constexpr size_t kSize = size_t{1} << 20;  // a byte less is set in the thread that enqueues it, if it may
  uint64_t actual = 0;
  void* memory = nullptr;
  aclrtStream stream = Report::stream = make_stream();
  for (const size_t size : {kSize - 1, 32 * kSize}) {
    Report::calls = 0;
    ASSERT_EQ(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMalloc(&Report::freed, 1, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    Report::copied = memory;
    ASSERT_EQ(aclrtSetExceptionInfoCallback(Report::report), ACL_SUCCESS);
    ASSERT_EQ(aclrtSetOpExecuteTimeOutV2(1, &actual), ACL_SUCCESS);
    ASSERT_EQ(aclrtMemsetAsync(memory, size, 5, size, stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_TASK_TIMEOUT) << size;
    ASSERT_EQ(aclrtSetExceptionInfoCallback(nullptr), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT_EQ(Report::calls, 1);
    EXPECT_EQ(Report::byte, 5);
    EXPECT_EQ(aclrtMemcpy(&Report::byte, 1, memory, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(Report::byte, 7);
    EXPECT_EQ(Report::of_free, ACL_SUCCESS);
    EXPECT_EQ(Report::of_copy, ACL_SUCCESS);
    EXPECT_EQ(Report::of_enqueued, ACL_SUCCESS);
    EXPECT_EQ(Report::of_own_stream, ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(Report::of_device, ACL_ERROR_RT_PARAM_INVALID);
    EXPECT_EQ(aclrtFree(Report::freed), ACL_ERROR_RT_PARAM_INVALID) << "it was freed by the report";
  }
  (void)message();
}

TEST_F(AclLimits, AStreamAttributeStopsItOnFailure) {
  aclrtStream stream = make_stream();
  uint64_t actual = 0;
  aclrtStreamAttrValue value = {};
  value.failureMode = ACL_STOP_ON_FAILURE;
  ASSERT_EQ(aclrtSetStreamAttribute(stream, ACL_STREAM_ATTR_FAILURE_MODE, &value), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetOpExecuteTimeOutV2(1, &actual), ACL_SUCCESS);
  bool ran = false;
  {
    Gate gate(stream);
    launch_long_task(stream);
    const aclrtHostFunc set = [](void* flag) { *static_cast<bool*>(flag) = true; };
    ASSERT_EQ(aclrtLaunchHostFunc(stream, set, &ran), ACL_SUCCESS);
  }
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_RT_TASK_TIMEOUT);
  EXPECT_FALSE(ran);
  value.failureMode = 2;
  expect_failure(aclrtSetStreamAttribute(stream, ACL_STREAM_ATTR_FAILURE_MODE, &value),
                 ACL_ERROR_INVALID_PARAM, "mode is 2");
  expect_failure(aclrtSetStreamAttribute(stream, ACL_STREAM_ATTR_USER_CUSTOM_TAG, &value),
                 ACL_ERROR_FEATURE_UNSUPPORTED, "stmAttrType is 3");
  expect_failure(aclrtSetStreamAttribute(stream, ACL_STREAM_ATTR_FAILURE_MODE, nullptr),
                 ACL_ERROR_INVALID_PARAM, "value is null");
}

TEST_F(AclLimits, AStreamWaitsForAValue) {
  uint64_t* memory = values({0, 0});
  const struct {
    uint32_t flag;
    uint64_t before, wanted, after;
  } cases[] = {
      {ACL_STREAM_WAIT_VALUE_GEQ, 4, 5, 6},
      {ACL_STREAM_WAIT_VALUE_GEQ, UINT64_MAX, 0, 0},  // -1 is less than 0
      {ACL_STREAM_WAIT_VALUE_EQ, 6, 5, 5},
      {ACL_STREAM_WAIT_VALUE_AND, 8, 3, 2},
      {ACL_STREAM_WAIT_VALUE_NOR, UINT64_MAX - 1, 1, UINT64_MAX - 3},
  };
  aclrtStream waiting = make_stream(), writing = make_stream();
  for (const auto& [flag, before, wanted, after] : cases) {
    ASSERT_EQ(aclrtValueWrite(memory, before, 0, writing), ACL_SUCCESS) << message();
    ASSERT_EQ(aclrtSynchronizeStream(writing), ACL_SUCCESS);
    EXPECT_EQ(value(memory), before);
    ASSERT_EQ(aclrtValueWait(memory, wanted, flag, waiting), ACL_SUCCESS) << message();
    ASSERT_EQ(aclrtMemcpyAsync(memory + 1, 8, memory, 8, ACL_MEMCPY_DEVICE_TO_DEVICE, waiting), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(waiting, 5), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT) << flag;
    ASSERT_EQ(aclrtValueWrite(memory, after, 0, writing), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(waiting), ACL_SUCCESS) << message();
    EXPECT_EQ(value(memory + 1), after) << flag;
    ASSERT_EQ(aclrtValueWait(memory, wanted, flag, waiting), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(waiting), ACL_SUCCESS) << "a value that passes is not awaited";
  }
  (void)message();
}

TEST_F(AclLimits, ManyStreamsWaitWithoutThreads) {
  constexpr int kStreams = 200;
  uint64_t* memory = values({0});
  std::vector<aclrtStream> streams;
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(make_stream());
    ASSERT_EQ(aclrtValueWait(memory, i + 1, ACL_STREAM_WAIT_VALUE_GEQ, streams.back()), ACL_SUCCESS);
  }
  aclrtStream writing = make_stream();
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_EQ(aclrtValueWrite(memory, i + 1, 0, writing), ACL_SUCCESS);
    ASSERT_EQ(aclrtSynchronizeStream(streams[i]), ACL_SUCCESS);
  }
}

TEST_F(AclLimits, AnAbortEndsAWaitForAValue) {
  uint64_t* memory = values({0});
  aclrtStream stream = make_stream();
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(aclrtValueWait(memory, 1, ACL_STREAM_WAIT_VALUE_EQ, stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtStreamAbort(stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    ASSERT_EQ(aclrtFree(memory), ACL_SUCCESS);
    memory = values({0});
  }
}

TEST_F(AclLimits, AddressesOfValuesAreChecked) {
  uint64_t* memory = values({0});
  uint64_t local = 0;
  aclrtStream stream = make_stream();
  expect_failure(aclrtValueWrite(&local, 1, 0, stream), ACL_ERROR_RT_PARAM_INVALID, "is host memory");
  expect_failure(aclrtValueWrite(nullptr, 1, 0, stream), ACL_ERROR_RT_PARAM_INVALID, "devAddr is null");
  expect_failure(aclrtValueWrite(reinterpret_cast<char*>(memory) + 4, 1, 0, stream),
                 ACL_ERROR_RT_ADDR_UNALIGNED, "not a multiple of 8");
  expect_failure(aclrtValueWrite(memory, 1, 1, stream), ACL_ERROR_INVALID_PARAM, "flag is 1");
  expect_failure(aclrtValueWait(memory, 1, 4, stream), ACL_ERROR_INVALID_PARAM, "flag is 4");
  expect_failure(aclrtValueWait(memory + 512, 1, 0, stream), ACL_ERROR_RT_PARAM_INVALID,
                 "no live allocation");
}

TEST_F(AclLimits, CoresAreLimitedByDeviceAndStream) {
  int64_t all = 0;
  ASSERT_EQ(aclrtGetDeviceInfo(0, ACL_DEV_ATTR_VECTOR_CORE_NUM, &all), ACL_SUCCESS);
  aclrtStream stream = make_stream();
  const auto of_device = [](aclrtDevResLimitType type) {
    uint32_t value = 0;
    EXPECT_EQ(aclrtGetDeviceResLimit(0, type, &value), ACL_SUCCESS) << message();
    return value;
  };
  const auto of_stream = [&](aclrtDevResLimitType type) {
    uint32_t value = 0;
    EXPECT_EQ(aclrtGetStreamResLimit(stream, type, &value), ACL_SUCCESS) << message();
    return value;
  };
  const auto of_thread = [](aclrtDevResLimitType type) {
    uint32_t value = 0;
    EXPECT_EQ(aclrtGetResInCurrentThread(type, &value), ACL_SUCCESS) << message();
    return value;
  };
  const auto cube = ACL_RT_DEV_RES_CUBE_CORE, vector = ACL_RT_DEV_RES_VECTOR_CORE;
  for (const auto get : {of_device(vector), of_stream(vector), of_thread(vector), of_thread(cube)})
    EXPECT_EQ(get, all);
  const auto most = static_cast<uint32_t>(all);
  ASSERT_EQ(aclrtSetDeviceResLimit(0, vector, 1), ACL_SUCCESS) << message();
  EXPECT_EQ(of_device(vector), 1u);
  EXPECT_EQ(of_device(cube), most);
  EXPECT_EQ(of_thread(vector), 1u);
  EXPECT_EQ(of_thread(cube), most);
  ASSERT_EQ(aclrtSetStreamResLimit(stream, vector, most), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetStreamResLimit(stream, cube, 1), ACL_SUCCESS);
  EXPECT_EQ(of_thread(vector), 1u) << "the thread does not use the stream's limits";
  ASSERT_EQ(aclrtUseStreamResInCurrentThread(stream), ACL_SUCCESS);
  EXPECT_EQ(of_thread(vector), most);
  EXPECT_EQ(of_thread(cube), 1u);
  std::thread([&] {
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(of_thread(cube), most) << "another thread";
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
  }).join();
  ASSERT_EQ(aclrtResetStreamResLimit(stream), ACL_SUCCESS);
  EXPECT_EQ(of_thread(vector), 1u) << "the device's hold again";
  ASSERT_EQ(aclrtUnuseStreamResInCurrentThread(stream), ACL_SUCCESS);
  expect_failure(aclrtUnuseStreamResInCurrentThread(stream), ACL_ERROR_RT_PARAM_INVALID,
                 "not the one whose limits");
  ASSERT_EQ(aclrtResetDeviceResLimit(0), ACL_SUCCESS);
  EXPECT_EQ(of_thread(vector), most);
  expect_failure(aclrtSetDeviceResLimit(0, vector, 0), ACL_ERROR_INVALID_PARAM, "value is 0");
  expect_failure(aclrtSetStreamResLimit(stream, vector, most + 1), ACL_ERROR_INVALID_PARAM,
                 "cores are accepted");
  expect_failure(aclrtSetDeviceResLimit(99, vector, 1), ACL_ERROR_RT_INVALID_DEVICEID, "99");
  expect_failure(aclrtSetDeviceResLimit(0, static_cast<aclrtDevResLimitType>(2), 1), ACL_ERROR_INVALID_PARAM,
                 "type is 2");
}

TEST_F(AclLimits, SystemParametersAreKept) {
  int64_t value = 7;
  expect_failure(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), ACL_ERROR_RT_SYSPARAMOPT_NOT_SET,
                 "was not set");
  EXPECT_EQ(value, 7);
  ASSERT_EQ(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1), ACL_SUCCESS);
  ASSERT_EQ(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), ACL_SUCCESS);
  EXPECT_EQ(value, 1);
  ASSERT_EQ(aclrtGetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, &value), ACL_SUCCESS)
      << "the process has defaults";
  EXPECT_EQ(value, 0);
  ASSERT_EQ(aclrtSetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, 1), ACL_SUCCESS);
  ASSERT_EQ(aclrtGetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, &value), ACL_SUCCESS);
  EXPECT_EQ(value, 1);
  ASSERT_EQ(aclrtSetSysParamOpt(ACL_OPT_STRONG_CONSISTENCY, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtSetSysParamOpt(ACL_OPT_ENABLE_DEBUG_KERNEL, 0), ACL_SUCCESS);
  expect_failure(aclrtSetSysParamOpt(ACL_OPT_ENABLE_DEBUG_KERNEL, 1), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "debugging");
  expect_failure(aclrtSetSysParamOpt(ACL_OPT_DETERMINISTIC, 2), ACL_ERROR_INVALID_PARAM, "value is 2");
  expect_failure(aclrtSetSysParamOpt(static_cast<aclSysParamOpt>(3), 1), ACL_ERROR_INVALID_PARAM, "opt is 3");
  expect_failure(aclrtGetSysParamOpt(ACL_OPT_DETERMINISTIC, nullptr), ACL_ERROR_INVALID_PARAM,
                 "value is null");
}

TEST_F(AclLimits, OverflowGivesInfinity) {
  aclrtFloatOverflowMode mode = ACL_RT_OVERFLOW_MODE_UNDEF;
  ASSERT_EQ(aclrtGetDeviceSatMode(&mode), ACL_SUCCESS);
  EXPECT_EQ(mode, ACL_RT_OVERFLOW_MODE_INFNAN);
  EXPECT_EQ(aclrtSetDeviceSatMode(ACL_RT_OVERFLOW_MODE_INFNAN), ACL_SUCCESS);
  expect_failure(aclrtSetDeviceSatMode(ACL_RT_OVERFLOW_MODE_SATURATION), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "mode is 0");
  uint32_t flag = 9;
  aclrtStream stream = make_stream();
  ASSERT_EQ(aclrtGetStreamOverflowSwitch(stream, &flag), ACL_SUCCESS);
  EXPECT_EQ(flag, 0u);
  EXPECT_EQ(aclrtSetStreamOverflowSwitch(stream, 0), ACL_SUCCESS);
  expect_failure(aclrtSetStreamOverflowSwitch(stream, 1), ACL_ERROR_FEATURE_UNSUPPORTED, "flag is 1");
}

TEST_F(AclLimits, UtilisationIsThatOfMemory) {
  size_t free = 0, total = 0;
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, free / 2, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << message();
  aclrtUtilizationInfo info = {};
  ASSERT_EQ(aclrtGetDeviceUtilizationRate(0, &info), ACL_SUCCESS) << message();
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
  EXPECT_EQ(info.memoryUtilization,
            static_cast<int32_t>(100 * static_cast<double>(total - free) / static_cast<double>(total)));
  EXPECT_GE(info.memoryUtilization, 49);
  EXPECT_EQ(info.cubeUtilization, DEVICE_UTILIZATION_NOT_SUPPORT);
  expect_failure(aclrtGetDeviceUtilizationRate(99, &info), ACL_ERROR_RT_INVALID_DEVICEID, "99");
  expect_failure(aclrtGetDeviceUtilizationRate(0, nullptr), ACL_ERROR_INVALID_PARAM,
                 "utilizationInfo is null");
}

}  // namespace
