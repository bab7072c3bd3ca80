// Device memory of several processes, of acl_rt.h.

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "abi/call.h"
#include "abi/handle.h"
#include "acl/acl.h"
#include "runtime/device.h"
#include "runtime/sharing.h"

using namespace anynpu;

namespace {

static_assert(ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION ==
              ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION);

Importers importers(uint64_t flags) {
  constexpr uint64_t kAnyProcess = ACL_RT_VMM_EXPORT_FLAG_DISABLE_PID_VALIDATION;
  abi::check(flags <= kAnyProcess, ACL_ERROR_INVALID_PARAM, "flags is ", flags,
             "; 0 (processes that are named may import) and 1 (any process of the user may) are accepted");
  return flags == kAnyProcess ? Importers::kAnyProcess : Importers::kAllowed;
}

std::string checked_key(const char* key) {
  abi::check(key != nullptr, ACL_ERROR_INVALID_PARAM,
             "key is null; what aclrtIpcMemGetExportKey gave is accepted");
  return {key, strnlen(key, ACL_IPC_HANDLE_SIZE)};
}

std::vector<pid_t> checked_processes(const int32_t* pids, size_t count, const char* count_argument) {
  constexpr size_t kMost = size_t{1} << 22;  // processes of a Linux system
  abi::check(pids != nullptr && count != 0 && count <= kMost, ACL_ERROR_INVALID_PARAM, "pid is ", pids,
             " and ", count_argument, " ", count, "; 1 to ", kMost, " processes are accepted");
  std::vector<pid_t> processes(pids, pids + count);
  for (size_t i = 0; i < count; ++i)
    abi::check(pids[i] > 0, ACL_ERROR_INVALID_PARAM, "pid[", i, "] is ", pids[i],
               "; what aclrtDeviceGetBareTgid gives is accepted");
  return processes;
}

}  // namespace

extern "C" {

aclError aclrtIpcMemGetExportKey(void* devPtr, size_t size, char* key, size_t length, uint64_t flags) {
  return abi::call("aclrtIpcMemGetExportKey", [&] {
    abi::check(key != nullptr && length >= ACL_IPC_HANDLE_SIZE, ACL_ERROR_INVALID_PARAM, "key is ",
               static_cast<const void*>(key), " and length ", length, "; a place for ", ACL_IPC_HANDLE_SIZE,
               " bytes or more is accepted");
    abi::check(devPtr != nullptr, ACL_ERROR_INVALID_PARAM, "devPtr is null; device memory is accepted");
    abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
    const std::string made = export_memory(devPtr, size, importers(flags));
    std::memcpy(key, made.c_str(), made.size() + 1);
  });
}

aclError aclrtIpcMemSetImportPid(const char* key, int32_t* pid, size_t count) {
  return abi::call("aclrtIpcMemSetImportPid",
                   [&] { allow_import(checked_key(key), checked_processes(pid, count, "count")); });
}

aclError aclrtIpcMemImportByKey(void** devPtr, const char* key, uint64_t flags) {
  return abi::call("aclrtIpcMemImportByKey", [&] {
    void*& address = abi::out(devPtr, "devPtr");
    abi::check(flags <= ACL_RT_IPC_MEM_IMPORT_FLAG_ENABLE_PEER_ACCESS, ACL_ERROR_INVALID_PARAM, "flags is ",
               flags, "; ACL_RT_IPC_MEM_IMPORT_FLAG_DEFAULT and _ENABLE_PEER_ACCESS are accepted");
    address = Context::current()->import(checked_key(key));
  });
}

aclError aclrtIpcMemClose(const char* key) {
  return abi::call("aclrtIpcMemClose", [&] {
    const std::string checked = checked_key(key);
    if (!Context::end_import(checked)) end_export(checked);
  });
}

aclError aclrtMemExportToShareableHandle(aclrtDrvMemHandle handle, aclrtMemHandleType handleType,
                                         uint64_t flags, uint64_t* shareableHandle) {
  return abi::call("aclrtMemExportToShareableHandle", [&] {
    uint64_t& place = abi::out(shareableHandle, "shareableHandle");
    abi::check(handleType == ACL_MEM_HANDLE_TYPE_NONE, ACL_ERROR_INVALID_PARAM, "handleType is ", handleType,
               "; ACL_MEM_HANDLE_TYPE_NONE is accepted");
    place = export_physical(abi::handle<PhysicalMemory>(handle, "handle"), importers(flags));
  });
}

aclError aclrtMemSetPidToShareableHandle(uint64_t shareableHandle, int32_t* pid, size_t pidNum) {
  return abi::call("aclrtMemSetPidToShareableHandle",
                   [&] { allow_import(shareableHandle, checked_processes(pid, pidNum, "pidNum")); });
}

aclError aclrtMemImportFromShareableHandle(uint64_t shareableHandle, int32_t deviceId,
                                           aclrtDrvMemHandle* handle) {
  return abi::call("aclrtMemImportFromShareableHandle", [&] {
    aclrtDrvMemHandle& place = abi::out(handle, "handle");
    place = new_handle(import_physical(shareableHandle, Device::get(deviceId)));
  });
}

}  // extern "C"
