// Streams, host functions and callbacks of acl_rt.h.

#include <cstring>

#include "abi/call.h"
#include "abi/handle.h"
#include "abi/limits.h"
#include "acl/acl.h"
#include "runtime/callbacks.h"
#include "runtime/device.h"

using namespace anynpu;

namespace {

constexpr uint32_t kLowestPriority = 7;
constexpr size_t kPublishedFlags = ACL_STREAM_FAST_LAUNCH | ACL_STREAM_FAST_SYNC | ACL_STREAM_PERSISTENT |
                                   ACL_STREAM_HUGE | ACL_STREAM_CPU_SCHEDULE;

/// Flags that ask for speed change nothing; those that ask for other behaviour are not built.
void create_stream(aclrtStream* place, uint32_t priority, size_t flags) {
  aclrtStream& created = abi::out(place, "stream");
  abi::check((flags & ~kPublishedFlags) == 0, ACL_ERROR_INVALID_PARAM, "flag is ", flags,
             "; the ACL_STREAM_ flags are accepted");
  abi::check(priority <= kLowestPriority, ACL_ERROR_INVALID_PARAM, "priority is ", priority,
             "; 0 (first) to ", kLowestPriority, " are accepted");
  abi::check((flags & (ACL_STREAM_PERSISTENT | ACL_STREAM_CPU_SCHEDULE)) == 0, ACL_ERROR_FEATURE_UNSUPPORTED,
             "flag is ", flags, "; ACL_STREAM_PERSISTENT and ACL_STREAM_CPU_SCHEDULE are not supported");
  const auto context = Context::current();
  auto stream = context->create_stream({.priority = static_cast<int>(priority)});
  const uint64_t id = stream->id();
  created = add_handle(HandleKind::kStream, id,
                       std::make_shared<StreamInContext>(StreamInContext{std::move(stream), context}));
}

void synchronize(aclrtStream handle, int32_t timeout) {
  const auto limit = abi::limit_of(timeout);
  abi::check(abi::stream_or_default(handle)->synchronize(limit), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT,
             "work of the stream is not done after timeout = ", timeout, " ms");
}

void set_failure_mode(aclrtStream stream, uint64_t mode) {
  abi::check(mode <= ACL_STOP_ON_FAILURE, ACL_ERROR_INVALID_PARAM, "mode is ", mode,
             "; ACL_CONTINUE_ON_FAILURE and ACL_STOP_ON_FAILURE are accepted");
  abi::stream_or_default(stream)->set_stop_on_failure(mode == ACL_STOP_ON_FAILURE);
}

/// A function of the user, which must not be null.
template <class Function>
Function checked_function(Function function, const char* argument) {
  abi::check(function != nullptr, ACL_ERROR_INVALID_PARAM, argument, " is null; a function is accepted");
  return function;
}

}  // namespace

extern "C" {

aclError aclrtCreateStream(aclrtStream* stream) {
  return abi::call("aclrtCreateStream", [&] { create_stream(stream, 0, 0); });
}

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t priority, uint32_t flag) {
  return abi::call("aclrtCreateStreamWithConfig", [&] { create_stream(stream, priority, flag); });
}

aclrtStreamConfigHandle* aclrtCreateStreamConfigHandle() {
  return abi::call_or(nullptr, "aclrtCreateStreamConfigHandle", [] {
    const auto config = std::make_shared<aclrtStreamConfigHandle>();
    add_address(HandleKind::kStreamConfig, config);
    return config.get();
  });
}

aclError aclrtDestroyStreamConfigHandle(aclrtStreamConfigHandle* handle) {
  return abi::call("aclrtDestroyStreamConfigHandle",
                   [&] { abi::taken<aclrtStreamConfigHandle>(handle, "handle"); });
}

aclError aclrtSetStreamConfigOpt(aclrtStreamConfigHandle* handle, aclrtStreamConfigAttr attr,
                                 const void* attrValue, size_t valueSize) {
  return abi::call("aclrtSetStreamConfigOpt", [&] {
    const auto config = abi::handle<aclrtStreamConfigHandle>(handle, "handle");
    abi::check(attr == ACL_RT_STREAM_FLAG || attr == ACL_RT_STREAM_PRIORITY, ACL_ERROR_FEATURE_UNSUPPORTED,
               "attr is ", attr, "; ACL_RT_STREAM_FLAG and ACL_RT_STREAM_PRIORITY are supported");
    uint32_t value = 0;
    abi::check(attrValue != nullptr && valueSize == sizeof(value), ACL_ERROR_INVALID_PARAM, "attrValue is ",
               attrValue, " and valueSize ", valueSize,
               "; the address and size (4) of a uint32_t are accepted");
    std::memcpy(&value, attrValue, sizeof(value));
    (attr == ACL_RT_STREAM_FLAG) ? config->flag = value : config->priority = value;
  });
}

aclError aclrtCreateStreamV2(aclrtStream* stream, const aclrtStreamConfigHandle* handle) {
  return abi::call("aclrtCreateStreamV2", [&] {
    const auto config = abi::handle<aclrtStreamConfigHandle>(handle, "handle");
    create_stream(stream, config->priority, config->flag);
  });
}

aclError aclrtDestroyStream(aclrtStream stream) {
  return abi::call("aclrtDestroyStream", [&] {
    Device::require_usable();
    Callbacks::instance().end(*abi::taken<StreamInContext>(stream, "stream")->stream);
  });
}

aclError aclrtDestroyStreamForce(aclrtStream stream) {
  return abi::call("aclrtDestroyStreamForce", [&] {
    Device::require_usable();
    const auto destroyed = abi::taken<StreamInContext>(stream, "stream")->stream;
    destroyed->abort(std::nullopt);
    Callbacks::instance().end(*destroyed);
  });
}

aclError aclrtSynchronizeStream(aclrtStream stream) {
  return abi::call("aclrtSynchronizeStream", [&] { synchronize(stream, -1); });
}

aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t timeout) {
  return abi::call("aclrtSynchronizeStreamWithTimeout", [&] { synchronize(stream, timeout); });
}

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  return abi::call("aclrtStreamQuery", [&] {
    abi::out(status, "status") =
        abi::stream_or_default(stream)->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  });
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t* streamId) {
  return abi::call("aclrtStreamGetId", [&] {
    abi::out(streamId, "streamId") = static_cast<int32_t>(abi::stream_or_default(stream)->id());
  });
}

aclError aclrtStreamAbort(aclrtStream stream) {
  return abi::call("aclrtStreamAbort", [&] { abi::stream_or_default(stream)->abort(); });
}

aclError aclrtSetStreamFailureMode(aclrtStream stream, uint64_t mode) {
  return abi::call("aclrtSetStreamFailureMode", [&] { set_failure_mode(stream, mode); });
}

aclError aclrtSetStreamAttribute(aclrtStream stream, aclrtStreamAttr stmAttrType,
                                 aclrtStreamAttrValue* value) {
  return abi::call("aclrtSetStreamAttribute", [&] {
    const aclrtStreamAttrValue& given = abi::out(value, "value");
    abi::check(stmAttrType == ACL_STREAM_ATTR_FAILURE_MODE, ACL_ERROR_FEATURE_UNSUPPORTED, "stmAttrType is ",
               stmAttrType, "; ACL_STREAM_ATTR_FAILURE_MODE is supported");
    set_failure_mode(stream, given.failureMode);
  });
}

aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc func, void* args) {
  return abi::call("aclrtLaunchHostFunc", [&] {
    checked_function(func, "func");
    const TaskLabel label("host function", TaskKind::kHost);
    abi::stream_or_default(stream)->launch(Lane::kHost, [func, args] { func(args); });
  });
}

aclError aclrtSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return abi::call("aclrtSubscribeReport",
                   [&] { Callbacks::instance().subscribe(threadId, *abi::stream_or_default(stream)); });
}

aclError aclrtUnSubscribeReport(uint64_t threadId, aclrtStream stream) {
  return abi::call("aclrtUnSubscribeReport",
                   [&] { Callbacks::instance().unsubscribe(threadId, *abi::stream_or_default(stream)); });
}

aclError aclrtLaunchCallback(aclrtCallback fn, void* userData, aclrtCallbackBlockType blockType,
                             aclrtStream stream) {
  return abi::call("aclrtLaunchCallback", [&] {
    checked_function(fn, "fn");
    abi::check(blockType == ACL_CALLBACK_BLOCK || blockType == ACL_CALLBACK_NO_BLOCK, ACL_ERROR_INVALID_PARAM,
               "blockType is ", blockType, "; ACL_CALLBACK_BLOCK and ACL_CALLBACK_NO_BLOCK are accepted");
    Callbacks::instance().launch(
        *abi::stream_or_default(stream), [fn, userData] { fn(userData); }, blockType == ACL_CALLBACK_BLOCK);
  });
}

aclError aclrtProcessReport(int32_t timeout) {
  return abi::call("aclrtProcessReport", [&] {
    const auto limit = abi::limit_of(timeout);
    abi::check(Callbacks::instance().run_next(pthread_self(), limit), ACL_ERROR_RT_REPORT_TIMEOUT,
               "no callback came within timeout = ", timeout, " ms");
  });
}

}  // extern "C"
