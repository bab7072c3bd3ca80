#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace anynpu {

/// What went wrong, in the runtime's own terms; src/abi maps each code to its published ACL number.
enum class ErrorCode {
  kInvalidArgument,      ///< the caller passed something that no state of the runtime would accept
  kInvalidDevice,        ///< a device ordinal outside [0, device_count)
  kInvalidHandle,        ///< a stream, event, context or block that does not exist (any more)
  kNoContext,            ///< the calling thread has chosen no device yet
  kNotInitialized,       ///< the library was not initialised, or was finalised
  kAlreadyDone,          ///< initialise or finalise repeated
  kOutOfMemory,          ///< the device memory budget or the host ran out
  kTimeout,              ///< a time limit passed before the work was done
  kTaskTimeout,          ///< a task ran longer than tasks may
  kAborted,              ///< the work was dropped by an abort of its stream
  kDeviceAborted,        ///< the work was dropped by an abort of all of its device's work
  kAlreadySubscribed,    ///< the callbacks of the stream belong to a thread already
  kStreamNotSubscribed,  ///< the callbacks of the stream belong to no thread, or to another one
  kThreadNotSubscribed,  ///< no stream's callbacks belong to the thread
  kNoPermission,         ///< another process does not let this one use what it exports
  kPeerFailed,           ///< another process, whose work or answer is needed, is gone or does not answer
  kForked,               ///< the process is a fork of one that had started the device
  kUnsupported,          ///< a published feature that is not built
  kInternal,             ///< a defect of this library
};

/// The one failure mechanism below the C ABI: what failed travels as an exception to `abi::call`, to the
/// PyTorch adapter, or (from a task) to the next synchronisation of its stream.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

/// Concatenates everything `<<` can print.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void raise(ErrorCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

/// Raises unless `condition` holds.
template <class... Parts>
void require(bool condition, ErrorCode code, const Parts&... parts) {
  if (!condition) [[unlikely]]
    raise(code, parts...);
}

}  // namespace anynpu
