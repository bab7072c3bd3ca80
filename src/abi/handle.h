#pragma once

#include <memory>

#include "abi/call.h"
#include "acl/acl_rt.h"
#include "runtime/handles.h"

namespace anynpu {

template <>
struct KindOf<aclrtStreamConfigHandle> : KindIs<HandleKind::kStreamConfig> {};
template <>
struct KindOf<aclDataBuffer> : KindIs<HandleKind::kDataBuffer> {};
template <>
struct KindOf<aclTensorDesc> : KindIs<HandleKind::kTensorDesc> {};

}  // namespace anynpu

namespace anynpu::abi {

/// The object of a handle. Fails with ACL_ERROR_INVALID_PARAM for null and ACL_ERROR_RT_INVALID_HANDLE for
/// what is no handle of that kind (any more), naming the argument.
template <class T>
std::shared_ptr<T> handle(const void* value, const char* argument) {
  constexpr HandleKind kKind = KindOf<T>::value;
  check(value != nullptr, ACL_ERROR_INVALID_PARAM, argument, " is null; it must be ", name_of(kKind));
  return std::static_pointer_cast<T>(find_handle(kKind, value, argument));
}
/// The same, and then it is no handle any more.
template <class T>
std::shared_ptr<T> taken(const void* value, const char* argument) {
  (void)handle<T>(value, argument);
  return std::static_pointer_cast<T>(take_handle(KindOf<T>::value, value, argument));
}

/// The stream of a handle, which must be of the current context; null: that context's default stream.
std::shared_ptr<Stream> stream_or_default(aclrtStream handle);

}  // namespace anynpu::abi
