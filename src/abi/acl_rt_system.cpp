// Settings and figures of the system, of acl_rt.h.

#include <array>
#include <mutex>
#include <optional>

#include "abi/call.h"
#include "abi/handle.h"
#include "acl/acl.h"
#include "base/fork.h"
#include "runtime/arena.h"
#include "runtime/device.h"

using namespace anynpu;

namespace {

/// The parameters of the process, all 0 until they are set.
struct Parameters {
  std::mutex mutex;
  std::array<int64_t, kSystemParameters> values = {};
};

/// Made when the library is loaded: no fork can find it half made. Outlives every thread.
Parameters& of_process = []() -> Parameters& {
  auto* made = new Parameters;
  hold_in_forks(made->mutex);
  return *made;
}();

size_t checked_option(aclSysParamOpt opt) {
  abi::check(opt >= ACL_OPT_DETERMINISTIC && opt <= ACL_OPT_STRONG_CONSISTENCY, ACL_ERROR_INVALID_PARAM,
             "opt is ", opt, "; the ACL_OPT_ constants are accepted");
  return static_cast<size_t>(opt);
}

/// All results are the same from run to run, and all memory is consistent, whether that is asked for or not.
/// There are no kernels for debugging.
int64_t checked_value(aclSysParamOpt opt, int64_t value) {
  abi::check(value == 0 || value == 1, ACL_ERROR_INVALID_PARAM, "value is ", value, "; 0 and 1 are accepted");
  abi::check(opt != ACL_OPT_ENABLE_DEBUG_KERNEL || value == 0, ACL_ERROR_FEATURE_UNSUPPORTED,
             "opt is ACL_OPT_ENABLE_DEBUG_KERNEL and value 1; there are no kernels for debugging");
  return value;
}

}  // namespace

extern "C" {

aclError aclrtSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return abi::call("aclrtSetSysParamOpt", [&] {
    const size_t option = checked_option(opt);
    const int64_t checked = checked_value(opt, value);
    std::lock_guard lock(of_process.mutex);
    of_process.values[option] = checked;
  });
}

aclError aclrtGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return abi::call("aclrtGetSysParamOpt", [&] {
    int64_t& place = abi::out(value, "value");
    const size_t option = checked_option(opt);
    std::lock_guard lock(of_process.mutex);
    place = of_process.values[option];
  });
}

aclError aclrtCtxSetSysParamOpt(aclSysParamOpt opt, int64_t value) {
  return abi::call("aclrtCtxSetSysParamOpt", [&] {
    const size_t option = checked_option(opt);
    Context::current()->set_parameter(option, checked_value(opt, value));
  });
}

aclError aclrtCtxGetSysParamOpt(aclSysParamOpt opt, int64_t* value) {
  return abi::call("aclrtCtxGetSysParamOpt", [&] {
    int64_t& place = abi::out(value, "value");
    const size_t option = checked_option(opt);
    const std::optional<int64_t> set = Context::current()->parameter(option);
    abi::check(set.has_value(), ACL_ERROR_RT_SYSPARAMOPT_NOT_SET, "opt ", opt,
               " was not set in the current context");
    place = *set;
  });
}

aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode mode) {
  return abi::call("aclrtSetDeviceSatMode", [&] {
    abi::check(mode == ACL_RT_OVERFLOW_MODE_INFNAN, ACL_ERROR_FEATURE_UNSUPPORTED, "mode is ", mode,
               "; ACL_RT_OVERFLOW_MODE_INFNAN is supported: overflow gives infinity");
    (void)Context::current();
  });
}

aclError aclrtGetDeviceSatMode(aclrtFloatOverflowMode* mode) {
  return abi::call("aclrtGetDeviceSatMode", [&] {
    (void)Context::current();
    abi::out(mode, "mode") = ACL_RT_OVERFLOW_MODE_INFNAN;
  });
}

aclError aclrtSetStreamOverflowSwitch(aclrtStream stream, uint32_t flag) {
  return abi::call("aclrtSetStreamOverflowSwitch", [&] {
    (void)abi::stream_or_default(stream);
    abi::check(flag == 0, ACL_ERROR_FEATURE_UNSUPPORTED, "flag is ", flag,
               "; 0 is supported: overflow is not detected, it gives infinity");
  });
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream stream, uint32_t* flag) {
  return abi::call("aclrtGetStreamOverflowSwitch", [&] {
    (void)abi::stream_or_default(stream);
    abi::out(flag, "flag") = 0;
  });
}

aclError aclrtGetDeviceUtilizationRate(int32_t deviceId, aclrtUtilizationInfo* utilizationInfo) {
  return abi::call("aclrtGetDeviceUtilizationRate", [&] {
    aclrtUtilizationInfo& place = abi::out(utilizationInfo, "utilizationInfo");
    (void)Device::get(deviceId);
    const MemoryBudget& budget = MemoryBudget::instance();
    place.cubeUtilization = place.vectorUtilization = place.aicpuUtilization = DEVICE_UTILIZATION_NOT_SUPPORT;
    place.memoryUtilization = static_cast<int32_t>(100 * static_cast<double>(budget.committed()) /
                                                   static_cast<double>(budget.total()));
  });
}

}  // extern "C"
