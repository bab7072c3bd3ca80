#pragma once

#include <exception>
#include <type_traits>
#include <utility>

#include "acl/acl_base.h"
#include "base/error.h"

namespace anynpu::abi {

/// An error with the published code to return, where ErrorCode says less than the interface does.
class Failure : public Error {
 public:
  Failure(aclError code, const std::string& what)
      : Error(ErrorCode::kInvalidArgument, what), published_(code) {}
  aclError published() const { return published_; }

 private:
  aclError published_;
};

template <class... Parts>
[[noreturn]] void fail(aclError code, const Parts&... parts) {
  throw Failure(code, concat(parts...));
}

/// Fails with `code` unless `condition` holds.
template <class... Parts>
void check(bool condition, aclError code, const Parts&... parts) {
  if (!condition) [[unlikely]]
    fail(code, parts...);
}

/// The place that an output argument points to.
template <class T>
T& out(T* place, const char* argument) {
  check(place != nullptr, ACL_ERROR_INVALID_PARAM, argument, " is null; it must point to a place for it");
  return *place;
}

/// See call().
aclError call_erased(const char* function, void (*body)(void*), void* closure);

/// Runs `body` as the function of that name of the C interface: writes a line under ANYNPU_VERBOSE, returns
/// the published code of what `body` raised and keeps its text for recent_messages(). Lets nothing out but
/// the end of the thread, which pthread_cancel and pthread_exit raise.
template <class F>
aclError call(const char* function, F body) {
  return call_erased(function, [](void* closure) { (*static_cast<F*>(closure))(); }, &body);
}

/// The same for functions that return a value: that of `body`, or `otherwise` when it failed.
template <class F, class T = std::invoke_result_t<F>>
T call_or(std::type_identity_t<T> otherwise, const char* function, F body) {
  call(function, [&] { otherwise = body(); });
  return otherwise;
}

/// What a function that is not built does: fails with ACL_ERROR_FEATURE_UNSUPPORTED and this reason.
aclError unsupported(const char* function, const char* why) noexcept;

/// The same for a function that takes the name of an operator, which the message repeats; it may be null.
aclError unsupported_operator(const char* function, const char* op_type, const char* why) noexcept;

const char* error_name(aclError code);

/// The published code of an exception.
aclError published(const std::exception_ptr& error) noexcept;

/// What failed in the calling thread since the last call of this function, newest first, or null. The text
/// lives until the next call.
const char* recent_messages() noexcept;

/// The code of the calling thread's last failure, ACL_SUCCESS when there was none since it was forgotten.
aclError last_error() noexcept;
void forget_last_error() noexcept;

}  // namespace anynpu::abi
