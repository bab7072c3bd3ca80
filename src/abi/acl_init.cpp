// Initialisation, versions and error reports of acl_rt.h.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>

#include "abi/call.h"
#include "abi/device_use.h"
#include "acl/acl.h"
#include "base/fork.h"
#include "base/log.h"
#include "runtime/device.h"
#include "runtime/running.h"

using namespace anynpu;

namespace {

struct Initialisation {
  std::mutex mutex;
  uint64_t references = 0;
  bool ever = false;
};

/// Made when the library is loaded: no fork can find it half made. Outlives every thread.
Initialisation& state = []() -> Initialisation& {
  auto* made = new Initialisation;
  hold_in_forks(made->mutex);
  return *made;
}();

/// The settings that such a file can hold are not built: that is said, and does not stop the program.
void read_config(const std::string& path) {
  std::ifstream file(path);
  abi::check(file.good() && !std::filesystem::is_directory(path), ACL_ERROR_INVALID_FILE, "configPath '",
             path, "' cannot be read; null, an empty text and a file that can be read are accepted");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (text.find('"') != std::string::npos)
    write_line(concat("anynpu: aclInit: the settings in ", path, " are not supported and have no effect"));
}

/// Takes one reference or all back; the number that is left.
uint64_t take_references_back(bool all) {
  std::unique_lock lock(state.mutex);
  abi::check(state.ever, ACL_ERROR_UNINITIALIZE, "aclInit was never called");
  abi::check(state.references != 0, ACL_ERROR_REPEAT_FINALIZE, "every aclInit was finalised already");
  const uint64_t left = all ? 0 : state.references - 1;
  if (left == 0) Running::require_outside("finalising");
  state.references = left;
  lock.unlock();  // tasks that are waited for may call aclInit
  if (left == 0) abi::end_all_devices();
  return left;
}

/// What the software has: sums that are out of range become infinite, operators know bfloat16. Operators that
/// are compiled for the sizes of each call (jit_compile) are not among it: kernels serve all sizes.
constexpr aclCannAttr kAttributes[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16};

}  // namespace

extern "C" {

aclError aclInit(const char* configPath) {
  return abi::call("aclInit", [&] {
    if (configPath != nullptr && *configPath != '\0') read_config(configPath);
    std::lock_guard lock(state.mutex);
    state.ever = true;
    abi::check(++state.references == 1, ACL_ERROR_REPEAT_INITIALIZE,
               "the process is initialised already; the call counts as a further reference");
  });
}

aclError aclFinalize() {
  return abi::call("aclFinalize", [] { take_references_back(true); });
}

aclError aclFinalizeReference(uint64_t* refCount) {
  return abi::call("aclFinalizeReference", [&] {
    const uint64_t left = take_references_back(false);
    if (refCount != nullptr) *refCount = left;
  });
}

aclError aclrtGetVersion(int32_t* majorVersion, int32_t* minorVersion, int32_t* patchVersion) {
  return abi::call("aclrtGetVersion", [&] {
    int32_t& major = abi::out(majorVersion, "majorVersion");
    int32_t& minor = abi::out(minorVersion, "minorVersion");
    abi::out(patchVersion, "patchVersion") = ACL_PATCH_VERSION;
    major = ACL_MAJOR_VERSION;
    minor = ACL_MINOR_VERSION;
  });
}

const char* aclrtGetSocName() {
  return abi::call_or(nullptr, "aclrtGetSocName", [] { return soc_name(); });
}

aclError aclGetCannAttributeList(const aclCannAttr** cannAttrList, size_t* num) {
  return abi::call("aclGetCannAttributeList", [&] {
    const aclCannAttr*& list = abi::out(cannAttrList, "cannAttrList");
    abi::out(num, "num") = std::size(kAttributes);
    list = kAttributes;
  });
}

aclError aclGetCannAttribute(aclCannAttr cannAttr, int32_t* value) {
  return abi::call("aclGetCannAttribute", [&] {
    abi::check(cannAttr >= ACL_CANN_ATTR_INF_NAN && cannAttr <= ACL_CANN_ATTR_JIT_COMPILE,
               ACL_ERROR_INVALID_PARAM, "cannAttr is ", cannAttr,
               "; the ACL_CANN_ATTR_ constants are accepted");
    const bool has =
        std::find(std::begin(kAttributes), std::end(kAttributes), cannAttr) != std::end(kAttributes);
    abi::out(value, "value") = has ? 1 : 0;
  });
}

aclError aclrtGetRunMode(aclrtRunMode* runMode) {
  return abi::call("aclrtGetRunMode", [&] { abi::out(runMode, "runMode") = ACL_HOST; });
}

const char* aclGetRecentErrMsg() { return abi::recent_messages(); }

aclError aclrtPeekAtLastError(aclrtLastErrLevel level) {
  const aclError last = abi::last_error();
  const aclError status = abi::call("aclrtPeekAtLastError", [&] {
    abi::check(level == ACL_RT_THREAD_LEVEL, ACL_ERROR_INVALID_PARAM, "level is ", level,
               "; ACL_RT_THREAD_LEVEL is accepted");
  });
  return status == ACL_SUCCESS ? last : status;
}

aclError aclrtGetLastError(aclrtLastErrLevel level) {
  const aclError last = aclrtPeekAtLastError(level);
  if (level == ACL_RT_THREAD_LEVEL) abi::forget_last_error();
  return last;
}

}  // extern "C"
