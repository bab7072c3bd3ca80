// Events of acl_rt.h.

#include <algorithm>
#include <string>
#include <string_view>

#include "abi/call.h"
#include "abi/handle.h"
#include "abi/limits.h"
#include "acl/acl.h"
#include "runtime/device.h"
#include "runtime/shared_event.h"

using namespace anynpu;

namespace {

constexpr uint32_t kKnownFlags = ACL_EVENT_SYNC | ACL_EVENT_CAPTURE_STREAM_PROGRESS | ACL_EVENT_TIME_LINE |
                                 ACL_EVENT_EXTERNAL | ACL_EVENT_IPC;

void create_event(aclrtEvent* place, uint32_t flags) {
  aclrtEvent& created = abi::out(place, "event");
  abi::check((flags & ~kKnownFlags) == 0, ACL_ERROR_INVALID_PARAM, "flag is ", flags,
             "; the ACL_EVENT_ constants and their combinations are accepted");
  const bool shared = (flags & ACL_EVENT_IPC) != 0;
  abi::check(!shared || (flags & ACL_EVENT_TIME_LINE) == 0, ACL_ERROR_INVALID_PARAM, "flag is ", flags,
             "; an event of several processes (ACL_EVENT_IPC) has no time (ACL_EVENT_TIME_LINE)");
  (void)Context::current();
  const bool waitable = (flags & (ACL_EVENT_SYNC | ACL_EVENT_EXTERNAL)) != 0;
  created = new_handle(shared ? std::make_shared<HandledEvent>(SharedEvent::create())
                              : std::make_shared<HandledEvent>((flags & ACL_EVENT_TIME_LINE) != 0, waitable));
}

/// In a fork no event is ever reached, which whoever asks must be told.
std::shared_ptr<HandledEvent> event_of(aclrtEvent handle, const char* argument = "event") {
  Device::require_usable();
  return abi::handle<HandledEvent>(handle, argument);
}

/// The event of a handle, made for waits of streams.
std::shared_ptr<HandledEvent> waitable_event(aclrtEvent handle) {
  auto event = event_of(handle);
  abi::check(event->waitable, ACL_ERROR_RT_PARAM_INVALID,
             "event was made without ACL_EVENT_SYNC; this needs one made with it");
  return event;
}

aclError query(const char* function, aclrtEvent handle, const std::function<void(bool reached)>& report) {
  return abi::call(function, [&] {
    const auto recording = event_of(handle)->event.recording();
    const bool done = recording != nullptr && recording->done();
    report(done && recording->error() == nullptr);
    if (done && recording->error() != nullptr) std::rethrow_exception(recording->error());
  });
}

void synchronize(aclrtEvent handle, int32_t timeout) {
  const auto limit = abi::limit_of(timeout);
  abi::check(event_of(handle)->event.synchronize(limit), ACL_ERROR_RT_EVENT_SYNC_TIMEOUT,
             "event is not reached after timeout = ", timeout, " ms");
}

/// When the point of the event was reached.
Recording::Clock::time_point timestamp(aclrtEvent handle, const char* argument) {
  const auto event = event_of(handle, argument);
  abi::check(event->event.timing(), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, argument,
             " was made without ACL_EVENT_TIME_LINE; time needs it");
  const auto recording = event->event.recording();
  abi::check(recording != nullptr, ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID, argument, " was never recorded");
  abi::check(recording->done(), ACL_ERROR_RT_EVENT_NOT_COMPLETE, argument,
             " is not reached yet; synchronise it first");
  return recording->time();
}

}  // namespace

extern "C" {

aclError aclrtCreateEvent(aclrtEvent* event) {
  return abi::call("aclrtCreateEvent", [&] { create_event(event, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE); });
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t flag) {
  return abi::call("aclrtCreateEventWithFlag", [&] { create_event(event, flag); });
}

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t flag) {
  return abi::call("aclrtCreateEventExWithFlag", [&] { create_event(event, flag); });
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  return abi::call("aclrtDestroyEvent", [&] { abi::taken<HandledEvent>(event, "event"); });
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  return abi::call("aclrtRecordEvent",
                   [&] { event_of(event)->event.record(*abi::stream_or_default(stream)); });
}

aclError aclrtResetEvent(aclrtEvent event, aclrtStream stream) {
  return abi::call("aclrtResetEvent", [&] {
    (void)abi::stream_or_default(stream);
    waitable_event(event)->event.reset();
  });
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  return abi::call("aclrtStreamWaitEvent", [&] {
    const auto waited = waitable_event(event);
    const auto waiting = abi::stream_or_default(stream);
    const auto recording = waited->event.recording();
    if (recording == nullptr || recording->done()) return;
    waiting->wait(recording, time_limits().wait);
    auto over = waiting->record();
    std::lock_guard lock(waited->mutex);
    std::erase_if(waited->waits, [](const auto& point) { return point->done(); });
    waited->waits.push_back(std::move(over));
  });
}

aclError aclrtQueryEvent(aclrtEvent event, aclrtEventStatus* status) {
  return query("aclrtQueryEvent", event, [&](bool reached) {
    abi::out(status, "status") = reached ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  return query("aclrtQueryEventStatus", event, [&](bool reached) {
    abi::out(status, "status") =
        reached ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  });
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  return abi::call("aclrtQueryEventWaitStatus", [&] {
    const auto waited = waitable_event(event);
    std::lock_guard lock(waited->mutex);
    const bool over = std::all_of(waited->waits.begin(), waited->waits.end(),
                                  [](const auto& point) { return point->done(); });
    abi::out(status, "status") = over ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  return abi::call("aclrtSynchronizeEvent", [&] { synchronize(event, -1); });
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t timeout) {
  return abi::call("aclrtSynchronizeEventWithTimeout", [&] { synchronize(event, timeout); });
}

aclError aclrtEventElapsedTime(float* ms, aclrtEvent startEvent, aclrtEvent endEvent) {
  return abi::call("aclrtEventElapsedTime", [&] {
    const auto time = timestamp(endEvent, "endEvent") - timestamp(startEvent, "startEvent");
    abi::check(time >= time.zero(), ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL,
               "endEvent was reached before startEvent");
    abi::out(ms, "ms") = std::chrono::duration<float, std::milli>(time).count();
  });
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp) {
  return abi::call("aclrtEventGetTimestamp", [&] {
    const auto since_start = ::timestamp(event, "event").time_since_epoch();
    abi::out(timestamp, "timestamp") =
        std::chrono::duration_cast<std::chrono::microseconds>(since_start).count();
  });
}

aclError aclrtIpcGetEventHandle(aclrtEvent event, aclrtIpcEventHandle* handle) {
  return abi::call("aclrtIpcGetEventHandle", [&] {
    const auto found = event_of(event);
    aclrtIpcEventHandle& place = abi::out(handle, "handle");
    abi::check(found->event.shared() != nullptr, ACL_ERROR_RT_PARAM_INVALID,
               "event was made without ACL_EVENT_IPC; this needs one made with it");
    const std::string key = found->event.shared()->export_key();
    static_assert(sizeof(place.reserved) == 64);
    key.copy(place.reserved, sizeof(place.reserved));
  });
}

aclError aclrtIpcOpenEventHandle(aclrtIpcEventHandle handle, aclrtEvent* event) {
  return abi::call("aclrtIpcOpenEventHandle", [&] {
    aclrtEvent& place = abi::out(event, "event");
    (void)Context::current();
    const std::string_view key(handle.reserved, sizeof(handle.reserved));
    place = new_handle(std::make_shared<HandledEvent>(SharedEvent::import(key)));
  });
}

}  // extern "C"
