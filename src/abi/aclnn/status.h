#pragma once

#include <memory>
#include <utility>

#include "abi/call.h"
#include "abi/handle.h"
#include "aclnn/acl_meta.h"

namespace anynpu::aclnn {

/// Fails with ACLNN_ERR_PARAM_INVALID unless `condition` holds.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  abi::check(condition, ACLNN_ERR_PARAM_INVALID, parts...);
}

/// The place that an output argument points to.
template <class T>
T& out(T* place, const char* argument) {
  abi::check(place != nullptr, ACLNN_ERR_PARAM_NULLPTR, argument,
             " is null; it must point to a place for it");
  return *place;
}

/// The object of a handle. Null and what is no handle of that kind (any more) fail, naming the argument.
template <class T>
std::shared_ptr<T> object(const T* handle, const char* argument) {
  abi::check(handle != nullptr, ACLNN_ERR_PARAM_NULLPTR, argument, " is null; it must be ",
             name_of(KindOf<T>::value));
  return object_of<T>(handle, argument);
}

/// Raises the exception being handled with the code that aclnn functions have for it: for arguments
/// ACLNN_ERR_PARAM_*, for what the runtime refuses ACLNN_ERR_RUNTIME_ERROR, for defects ACLNN_ERR_INNER.
[[noreturn]] void rethrow_with_status();

/// abi::call() with those codes.
template <class F>
aclnnStatus call(const char* function, F body) {
  return abi::call(function, [&] {
    try {
      body();
    } catch (const std::exception&) {
      rethrow_with_status();
    }
  });
}

}  // namespace anynpu::aclnn
