// Devices and contexts of acl_rt.h.

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "abi/call.h"
#include "abi/device_use.h"
#include "abi/handle.h"
#include "abi/limits.h"
#include "acl/acl.h"
#include "runtime/arena.h"
#include "runtime/device.h"
#include "runtime/limits.h"

using namespace anynpu;

namespace {

int checked_device(int64_t id, const char* argument = "deviceId") {
  require(id >= 0 && id < device_count(), ErrorCode::kInvalidDevice, argument, " is ", id, "; 0 to ",
          device_count() - 1, " are accepted");
  return static_cast<int>(id);
}

/// Changes whether the current device reaches a peer.
void let_reach_peer(int32_t id, bool reaches) {
  Device& device = Device::get(Context::current()->device());
  const Device& peer = Device::get(checked_device(id, "peerDeviceId"));
  abi::check(&peer != &device, ACL_ERROR_RT_INVALID_DEVICEID, "peerDeviceId is ", id,
             ", the current device; another one is accepted");
  abi::check(reaches || device.reaches(peer), ACL_ERROR_RT_PARAM_INVALID, "device ", device.index(),
             " was not let reach device ", id);
  device.set_reaches(peer, reaches);
}

uint64_t hash_of_machine() {
  std::ifstream file("/etc/machine-id");
  std::string text;
  file >> text;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

int64_t device_attribute(int device, aclrtDevAttr attribute) {
  switch (attribute) {
    case ACL_DEV_ATTR_AICPU_CORE_NUM:
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM:
    case ACL_DEV_ATTR_VECTOR_CORE_NUM:
      return core_count();
    case ACL_DEV_ATTR_TOTAL_GLOBAL_MEM_SIZE:
      return static_cast<int64_t>(MemoryBudget::instance().total());
    case ACL_DEV_ATTR_L2_CACHE_SIZE:
      return std::max(0L, sysconf(_SC_LEVEL2_CACHE_SIZE));
    case ACL_DEV_ATTR_PHY_CHIP_ID:
      return device;
    default:
      abi::fail(ACL_ERROR_FEATURE_UNSUPPORTED, "attr is ", attribute,
                "; the numbers of cores and of the chip and the sizes of the memory and the L2 cache are "
                "supported");
  }
}

/// The attribute that the older interface names so.
aclrtDevAttr attribute_of(aclDeviceInfo info) {
  switch (info) {
    case ACL_DEVICE_INFO_AI_CORE_NUM:
      return ACL_DEV_ATTR_AICORE_CORE_NUM;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM:
      return ACL_DEV_ATTR_VECTOR_CORE_NUM;
    case ACL_DEVICE_INFO_L2_SIZE:
      return ACL_DEV_ATTR_L2_CACHE_SIZE;
    default:
      abi::fail(ACL_ERROR_FEATURE_UNSUPPORTED, "deviceInfo is ", info,
                "; the numbers of AI and vector cores and the size of the L2 cache are supported");
  }
}

}  // namespace

extern "C" {

aclError aclrtGetDeviceCount(uint32_t* count) {
  return abi::call("aclrtGetDeviceCount",
                   [&] { abi::out(count, "count") = static_cast<uint32_t>(device_count()); });
}

aclError aclrtSetDevice(int32_t deviceId) {
  return abi::call("aclrtSetDevice", [&] { Context::use_default(checked_device(deviceId)); });
}

aclError aclrtResetDevice(int32_t deviceId) {
  return abi::call("aclrtResetDevice", [&] { abi::unuse_device(checked_device(deviceId), false); });
}

aclError aclrtResetDeviceForce(int32_t deviceId) {
  return abi::call("aclrtResetDeviceForce", [&] { abi::unuse_device(checked_device(deviceId), true); });
}

aclError aclrtGetDevice(int32_t* deviceId) {
  return abi::call("aclrtGetDevice", [&] { abi::out(deviceId, "deviceId") = Context::current()->device(); });
}

aclError aclrtSynchronizeDevice() {
  return abi::call("aclrtSynchronizeDevice", [] { Device::get(Context::current()->device()).synchronize(); });
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  return abi::call("aclrtSynchronizeDeviceWithTimeout", [&] {
    const auto limit = abi::limit_of(timeout);
    Device& device = Device::get(Context::current()->device());
    abi::check(device.synchronize(limit), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, "work of device ", device.index(),
               " is not done after timeout = ", timeout, " ms");
  });
}

aclError aclrtDeviceTaskAbort(int32_t deviceId, uint32_t timeout) {
  return abi::call("aclrtDeviceTaskAbort", [&] {
    Device& device = Device::get(checked_device(deviceId));
    const auto limit =
        timeout == 0 ? std::nullopt : std::optional<Duration>(std::chrono::milliseconds(timeout));
    abi::check(device.abort(limit), ACL_ERROR_RT_WAIT_TIMEOUT, "tasks of device ", deviceId,
               " still run after timeout = ", timeout, " ms");
  });
}

aclError aclrtQueryDeviceStatus(int32_t deviceId, aclrtDeviceStatus* deviceStatus) {
  return abi::call("aclrtQueryDeviceStatus", [&] {
    (void)checked_device(deviceId);
    abi::out(deviceStatus, "deviceStatus") = ACL_RT_DEVICE_STATUS_NORMAL;
  });
}

aclError aclrtGetDeviceInfo(uint32_t deviceId, aclrtDevAttr attr, int64_t* value) {
  return abi::call("aclrtGetDeviceInfo",
                   [&] { abi::out(value, "value") = device_attribute(checked_device(deviceId), attr); });
}

aclError aclGetDeviceCapability(uint32_t deviceId, aclDeviceInfo deviceInfo, int64_t* value) {
  return abi::call("aclGetDeviceCapability", [&] {
    abi::out(value, "value") = device_attribute(checked_device(deviceId), attribute_of(deviceInfo));
  });
}

aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  return abi::call("aclrtDeviceGetBareTgid", [&] { abi::out(pid, "pid") = getpid(); });
}

aclError aclrtDeviceGetUuid(int32_t deviceId, aclrtUuid* uuid) {
  return abi::call("aclrtDeviceGetUuid", [&] {
    const uint64_t parts[] = {hash_of_machine(), static_cast<uint64_t>(checked_device(deviceId))};
    std::memcpy(abi::out(uuid, "uuid").bytes, parts, sizeof(uuid->bytes));
  });
}

aclError aclrtGetLogicDevIdByUserDevId(const int32_t userDeviceId, int32_t* const logicDeviceId) {
  return abi::call("aclrtGetLogicDevIdByUserDevId",
                   [&] { abi::out(logicDeviceId, "logicDeviceId") = checked_device(userDeviceId); });
}

aclError aclrtGetMemInfo(aclrtMemAttr attr, size_t* free, size_t* total) {
  return abi::call("aclrtGetMemInfo", [&] {
    const bool high_bandwidth = attr == ACL_HBM_MEM || attr == ACL_HBM_MEM_HUGE ||
                                attr == ACL_HBM_MEM_NORMAL || attr == ACL_HBM_MEM_P2P_HUGE ||
                                attr == ACL_HBM_MEM_P2P_NORMAL;
    abi::check(high_bandwidth, ACL_ERROR_FEATURE_UNSUPPORTED, "attr is ", attr,
               "; the device has high-bandwidth memory only, without pages of 1 GiB (ACL_HBM_MEM)");
    (void)Context::current();
    const MemoryBudget& budget = MemoryBudget::instance();
    size_t& free_bytes = abi::out(free, "free");
    abi::out(total, "total") = budget.total();
    free_bytes = budget.total() - budget.committed();
  });
}

aclError aclrtDeviceCanAccessPeer(int32_t* canAccessPeer, int32_t deviceId, int32_t peerDeviceId) {
  return abi::call("aclrtDeviceCanAccessPeer", [&] {
    const int device = checked_device(deviceId), peer = checked_device(peerDeviceId, "peerDeviceId");
    abi::out(canAccessPeer, "canAccessPeer") = device != peer;
  });
}

aclError aclrtDeviceEnablePeerAccess(int32_t peerDeviceId, uint32_t flags) {
  return abi::call("aclrtDeviceEnablePeerAccess", [&] {
    abi::check(flags == 0, ACL_ERROR_INVALID_PARAM, "flags is ", flags, "; 0 is accepted");
    let_reach_peer(peerDeviceId, true);
  });
}

aclError aclrtDeviceDisablePeerAccess(int32_t peerDeviceId) {
  return abi::call("aclrtDeviceDisablePeerAccess", [&] { let_reach_peer(peerDeviceId, false); });
}

aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId) {
  return abi::call("aclrtCreateContext", [&] {
    aclrtContext& place = abi::out(context, "context");
    const auto created = Context::create(checked_device(deviceId));
    created->make_current();
    place = add_handle(HandleKind::kContext, created->id(), created);
  });
}

aclError aclrtDestroyContext(aclrtContext context) {
  return abi::call("aclrtDestroyContext", [&] { abi::destroy_context(context, "context"); });
}

aclError aclrtSetCurrentContext(aclrtContext context) {
  return abi::call("aclrtSetCurrentContext",
                   [&] { abi::handle<Context>(context, "context")->make_current(); });
}

aclError aclrtGetCurrentContext(aclrtContext* context) {
  return abi::call("aclrtGetCurrentContext", [&] {
    const auto current = Context::current();
    abi::out(context, "context") = add_handle(HandleKind::kContext, current->id(), current);
  });
}

aclError aclrtGetPrimaryCtxState(int32_t deviceId, uint32_t* flags, int32_t* active) {
  return abi::call("aclrtGetPrimaryCtxState", [&] {
    Device::require_usable();
    abi::out(active, "active") = Context::uses_of_default(checked_device(deviceId)) != 0;
    if (flags != nullptr) *flags = 0;
  });
}

}  // extern "C"
