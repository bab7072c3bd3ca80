// Limits of time and cores, values that streams wait for, and reports of failed tasks, of acl_rt.h.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "abi/call.h"
#include "abi/handle.h"
#include "acl/acl.h"
#include "runtime/device.h"
#include "runtime/limits.h"
#include "runtime/memory.h"
#include "runtime/stream.h"
#include "runtime/value_wait.h"

using namespace anynpu;

/// What an exception callback is given; it exists while the callback runs.
struct rtExceptionInfo {
  uint32_t task, stream, thread, device, code;
};

template <>
struct anynpu::KindOf<rtExceptionInfo> : KindIs<HandleKind::kExceptionInfo> {};

namespace {

/// 0 means no limit.
std::chrono::nanoseconds limit_of_seconds(uint32_t timeout) { return std::chrono::seconds(timeout); }

CoreKind checked_kind(aclrtDevResLimitType type) {
  abi::check(type == ACL_RT_DEV_RES_CUBE_CORE || type == ACL_RT_DEV_RES_VECTOR_CORE, ACL_ERROR_INVALID_PARAM,
             "type is ", type, "; ACL_RT_DEV_RES_CUBE_CORE and ACL_RT_DEV_RES_VECTOR_CORE are accepted");
  return type == ACL_RT_DEV_RES_CUBE_CORE ? CoreKind::kCube : CoreKind::kVector;
}

uint32_t checked_cores(uint32_t value) {
  abi::check(value >= 1 && value <= core_count(), ACL_ERROR_INVALID_PARAM, "value is ", value, "; 1 to ",
             core_count(), " cores are accepted");
  return value;
}

/// The limit that is set, or the number of cores.
uint32_t limit_or_all(const CoreLimits& limits, CoreKind kind) {
  const uint32_t most = limits.get(kind);
  return most != 0 ? most : core_count();
}

void call_exception_callback(aclrtExceptionInfoCallback callback, const TaskFailure& failure) {
  const auto info = std::make_shared<rtExceptionInfo>(rtExceptionInfo{
      static_cast<uint32_t>(failure.task), static_cast<uint32_t>(failure.stream), failure.thread,
      static_cast<uint32_t>(failure.device), static_cast<uint32_t>(abi::published(failure.error))});
  add_address(HandleKind::kExceptionInfo, info);
  const struct Forget {
    const void* info;
    ~Forget() {
      take_handles_if(HandleKind::kExceptionInfo, [this](const void* object) { return object == info; });
    }
  } forget{info.get()};
  callback(info.get());
}

uint32_t of_exception(const char* function, const aclrtExceptionInfo* info,
                      uint32_t rtExceptionInfo::* member) {
  return abi::call_or(UINT32_MAX, function,
                      [&] { return (*abi::handle<rtExceptionInfo>(info, "info")).*member; });
}

uint64_t* checked_value(void* address) {
  Device::require_usable();
  check_range("devAddr", address, sizeof(uint64_t));
  abi::check(address != nullptr && Device::of(address) != nullptr, ACL_ERROR_RT_PARAM_INVALID, "devAddr (",
             address, ") is host memory; device memory is accepted");
  abi::check(reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t) == 0, ACL_ERROR_RT_ADDR_UNALIGNED,
             "devAddr (", address, ") is not a multiple of ", sizeof(uint64_t));
  return static_cast<uint64_t*>(address);
}

}  // namespace

extern "C" {

aclError aclrtSetOpWaitTimeout(uint32_t timeout) {
  return abi::call("aclrtSetOpWaitTimeout", [&] {
    Device::require_usable();
    time_limits().wait = limit_of_seconds(timeout);
  });
}

aclError aclrtSetOpExecuteTimeOut(uint32_t timeout) {
  return abi::call("aclrtSetOpExecuteTimeOut", [&] {
    Device::require_usable();
    time_limits().task = limit_of_seconds(timeout);
  });
}

aclError aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t* actualTimeout) {
  return abi::call("aclrtSetOpExecuteTimeOutV2", [&] {
    uint64_t& place = abi::out(actualTimeout, "actualTimeout");
    constexpr uint64_t kMost = INT64_MAX / 1000;  // microseconds that nanoseconds can express
    Device::require_usable();
    place = std::min(timeout, kMost);
    time_limits().task = std::chrono::microseconds(place);
  });
}

aclError aclrtGetDeviceResLimit(int32_t deviceId, aclrtDevResLimitType type, uint32_t* value) {
  return abi::call("aclrtGetDeviceResLimit", [&] {
    abi::out(value, "value") = limit_or_all(Device::get(deviceId).core_limits(), checked_kind(type));
  });
}

aclError aclrtSetDeviceResLimit(int32_t deviceId, aclrtDevResLimitType type, uint32_t value) {
  return abi::call("aclrtSetDeviceResLimit", [&] {
    Device::get(deviceId).core_limits().set(checked_kind(type), checked_cores(value));
  });
}

aclError aclrtResetDeviceResLimit(int32_t deviceId) {
  return abi::call("aclrtResetDeviceResLimit", [&] { Device::get(deviceId).core_limits().reset(); });
}

aclError aclrtGetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t* value) {
  return abi::call("aclrtGetStreamResLimit", [&] {
    abi::out(value, "value") =
        limit_or_all(abi::stream_or_default(stream)->core_limits(), checked_kind(type));
  });
}

aclError aclrtSetStreamResLimit(aclrtStream stream, aclrtDevResLimitType type, uint32_t value) {
  return abi::call("aclrtSetStreamResLimit", [&] {
    abi::stream_or_default(stream)->core_limits().set(checked_kind(type), checked_cores(value));
  });
}

aclError aclrtResetStreamResLimit(aclrtStream stream) {
  return abi::call("aclrtResetStreamResLimit",
                   [&] { abi::stream_or_default(stream)->core_limits().reset(); });
}

aclError aclrtUseStreamResInCurrentThread(aclrtStream stream) {
  return abi::call("aclrtUseStreamResInCurrentThread",
                   [&] { use_core_limits_of(abi::stream_or_default(stream)); });
}

aclError aclrtUnuseStreamResInCurrentThread(aclrtStream stream) {
  return abi::call("aclrtUnuseStreamResInCurrentThread", [&] {
    abi::check(abi::stream_or_default(stream) == core_limits_in_use(), ACL_ERROR_RT_PARAM_INVALID, "stream (",
               stream, ") is not the one whose limits the thread uses");
    use_core_limits_of(nullptr);
  });
}

aclError aclrtGetResInCurrentThread(aclrtDevResLimitType type, uint32_t* value) {
  return abi::call("aclrtGetResInCurrentThread", [&] {
    abi::out(value, "value") = cores_of_thread(checked_kind(type), Context::current()->device());
  });
}

aclError aclrtSetExceptionInfoCallback(aclrtExceptionInfoCallback callback) {
  return abi::call("aclrtSetExceptionInfoCallback", [&] {
    Device::require_usable();
    if (callback == nullptr) return observe_failures(nullptr);
    observe_failures([callback](const TaskFailure& failure) { call_exception_callback(callback, failure); });
  });
}

uint32_t aclrtGetTaskIdFromExceptionInfo(const aclrtExceptionInfo* info) {
  return of_exception("aclrtGetTaskIdFromExceptionInfo", info, &rtExceptionInfo::task);
}

uint32_t aclrtGetStreamIdFromExceptionInfo(const aclrtExceptionInfo* info) {
  return of_exception("aclrtGetStreamIdFromExceptionInfo", info, &rtExceptionInfo::stream);
}

uint32_t aclrtGetThreadIdFromExceptionInfo(const aclrtExceptionInfo* info) {
  return of_exception("aclrtGetThreadIdFromExceptionInfo", info, &rtExceptionInfo::thread);
}

uint32_t aclrtGetDeviceIdFromExceptionInfo(const aclrtExceptionInfo* info) {
  return of_exception("aclrtGetDeviceIdFromExceptionInfo", info, &rtExceptionInfo::device);
}

uint32_t aclrtGetErrorCodeFromExceptionInfo(const aclrtExceptionInfo* info) {
  return of_exception("aclrtGetErrorCodeFromExceptionInfo", info, &rtExceptionInfo::code);
}

aclError aclrtValueWrite(void* devAddr, uint64_t value, uint32_t flag, aclrtStream stream) {
  return abi::call("aclrtValueWrite", [&] {
    abi::check(flag == 0, ACL_ERROR_INVALID_PARAM, "flag is ", flag, "; 0 is accepted");
    const auto order = abi::stream_or_default(stream);
    const auto held = hold_memory();
    write_value_async(checked_value(devAddr), value, *order);
  });
}

aclError aclrtValueWait(void* devAddr, uint64_t value, uint32_t flag, aclrtStream stream) {
  return abi::call("aclrtValueWait", [&] {
    abi::check(flag <= ACL_STREAM_WAIT_VALUE_NOR, ACL_ERROR_INVALID_PARAM, "flag is ", flag,
               "; the ACL_STREAM_WAIT_VALUE_ constants are accepted");
    constexpr ValueTest kTests[] = {ValueTest::kAtLeast, ValueTest::kEqual, ValueTest::kAnyCommonBit,
                                    ValueTest::kAnyBitInNeither};
    const auto order = abi::stream_or_default(stream);
    const auto held = hold_memory();
    wait_for_value_async(checked_value(devAddr), kTests[flag], value, *order);
  });
}

}  // extern "C"
