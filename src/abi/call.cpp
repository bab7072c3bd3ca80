#include "abi/call.h"

#include <cxxabi.h>

#include <chrono>
#include <deque>
#include <new>

#include "base/log.h"
#include "base/thread_state.h"

namespace anynpu::abi {
namespace {

/// More unread messages than this of one thread say nothing new; the oldest go.
constexpr size_t kKeptMessages = 16;

struct ThreadErrors {
  aclError last = ACL_SUCCESS;
  std::deque<std::string> unread;  // newest first
  std::string read;                // what recent_messages() returned last
};
ThreadErrors& thread_errors() { return thread_state<ThreadErrors>(); }

aclError published(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ACL_ERROR_RT_PARAM_INVALID;
    case ErrorCode::kInvalidDevice:
      return ACL_ERROR_RT_INVALID_DEVICEID;
    case ErrorCode::kInvalidHandle:
      return ACL_ERROR_RT_INVALID_HANDLE;
    case ErrorCode::kNoContext:
      return ACL_ERROR_RT_CONTEXT_NULL;
    case ErrorCode::kNotInitialized:
      return ACL_ERROR_UNINITIALIZE;
    case ErrorCode::kAlreadyDone:
      return ACL_ERROR_REPEAT_INITIALIZE;
    case ErrorCode::kOutOfMemory:
      return ACL_ERROR_RT_MEMORY_ALLOCATION;
    case ErrorCode::kTimeout:
      return ACL_ERROR_RT_WAIT_TIMEOUT;
    case ErrorCode::kTaskTimeout:
      return ACL_ERROR_RT_TASK_TIMEOUT;
    case ErrorCode::kAborted:
      return ACL_ERROR_RT_STREAM_ABORT;
    case ErrorCode::kDeviceAborted:
      return ACL_ERROR_RT_DEVICE_TASK_ABORT;
    case ErrorCode::kAlreadySubscribed:
      return ACL_ERROR_REPEAT_SUBSCRIBE;
    case ErrorCode::kStreamNotSubscribed:
      return ACL_ERROR_RT_STREAM_NO_CB_REG;
    case ErrorCode::kThreadNotSubscribed:
      return ACL_ERROR_RT_THREAD_SUBSCRIBE;
    case ErrorCode::kNoPermission:
      return ACL_ERROR_RT_NO_PERMISSION;
    case ErrorCode::kPeerFailed:
      return ACL_ERROR_RT_IPC_ERROR;
    case ErrorCode::kForked:
      return ACL_ERROR_RT_DEV_SETUP_ERROR;
    case ErrorCode::kUnsupported:
      return ACL_ERROR_FEATURE_UNSUPPORTED;
    case ErrorCode::kInternal:
      break;
  }
  return ACL_ERROR_INTERNAL_ERROR;
}

/// The code and the text of the exception being handled.
std::pair<aclError, std::string> describe_current_exception() {
  try {
    throw;
  } catch (const Failure& failure) {
    return {failure.published(), failure.what()};
  } catch (const Error& error) {
    return {published(error.code()), error.what()};
  } catch (const std::bad_alloc&) {
    return {ACL_ERROR_BAD_ALLOC, "the host is out of memory"};
  } catch (const std::exception& exception) {
    return {ACL_ERROR_FAILURE, exception.what()};
  } catch (...) {
    return {ACL_ERROR_FAILURE, "an exception of a type that is not known here"};
  }
}

/// Keeps the exception being handled as the failure of `function`.
aclError record_failure(const char* function) noexcept try {
  const auto [code, text] = describe_current_exception();
  thread_errors().last = code;
  auto& unread = thread_errors().unread;
  unread.push_front(concat(function, " failed (", code, ", ", error_name(code), "): ", text));
  if (unread.size() > kKeptMessages) unread.pop_back();
  return code;
} catch (...) {  // there is no memory for the text
  return ACL_ERROR_BAD_ALLOC;
}

void write_trace(const char* function, aclError code, std::chrono::steady_clock::duration time) noexcept try {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  const auto& unread = thread_errors().unread;
  write_line(
      concat("anynpu: ", us, " us: ",
             code == ACL_SUCCESS || unread.empty() ? concat(function, " returned ", code) : unread.front()));
} catch (...) {  // there is no memory for the line
}

}  // namespace

aclError call_erased(const char* function, void (*body)(void*), void* closure) {
  const bool traced = [] {
    try {
      return verbose();
    } catch (const Error& error) {  // the option is set to no valid value
      write_line(error.what());
      return false;
    }
  }();
  const auto start = traced ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  aclError code = ACL_SUCCESS;
  try {
    body(closure);
  } catch (__cxxabiv1::__forced_unwind&) {
    throw;
  } catch (...) {
    code = record_failure(function);
  }
  if (traced) write_trace(function, code, std::chrono::steady_clock::now() - start);
  return code;
}

aclError unsupported(const char* function, const char* why) noexcept {
  return call(function, [&] { raise(ErrorCode::kUnsupported, "not supported: ", why); });
}

aclError unsupported_operator(const char* function, const char* op_type, const char* why) noexcept {
  if (op_type == nullptr) return unsupported(function, why);
  return call(function,
              [&] { raise(ErrorCode::kUnsupported, "not supported: operator '", op_type, "': ", why); });
}

aclError published(const std::exception_ptr& error) noexcept try {
  std::rethrow_exception(error);
} catch (...) {
  try {
    return describe_current_exception().first;
  } catch (...) {  // there is no memory for the text
    return ACL_ERROR_BAD_ALLOC;
  }
}

const char* recent_messages() noexcept try {
  auto& [last, unread, read] = thread_errors();
  if (unread.empty()) return nullptr;
  read.clear();
  for (const std::string& message : unread) {
    if (!read.empty()) read += '\n';
    read += message;
  }
  unread.clear();
  return read.c_str();
} catch (...) {
  return "there is no memory for the messages";
}

aclError last_error() noexcept try { return thread_errors().last; } catch (...) {
  return ACL_ERROR_BAD_ALLOC;
}

void forget_last_error() noexcept try {
  thread_errors().last = ACL_SUCCESS;
} catch (...) {  // nothing is kept
}

}  // namespace anynpu::abi
