#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "acl/acl_rt.h"
#include "runtime/context.h"
#include "runtime/event.h"
#include "runtime/physical_memory.h"
#include "runtime/stream.h"

namespace anynpu::abi {

/// A stream as the C interface knows it: usable where its context is current.
struct StreamInContext {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Context> context;
};

/// An event, its ACL_EVENT_ flags, and the points in streams at which waits for it are over.
struct FlaggedEvent {
  explicit FlaggedEvent(uint32_t with_flags) : flags(with_flags) {}
  FlaggedEvent(std::shared_ptr<SharedEvent> shared, uint32_t with_flags)
      : event(std::move(shared)), flags(with_flags) {}

  Event event;
  const uint32_t flags;
  std::mutex mutex;
  std::vector<std::shared_ptr<Recording>> waits;  // guarded by mutex
};

/// What a handle stands for.
enum class Kind : uint8_t {
  kContext,
  kStream,
  kEvent,
  kStreamConfig,
  kDataBuffer,
  kTensorDesc,
  kPhysicalMemory,
  kExceptionInfo
};

template <class T>
struct KindOf;
template <Kind kind>
using KindIs = std::integral_constant<Kind, kind>;
template <>
struct KindOf<Context> : KindIs<Kind::kContext> {};
template <>
struct KindOf<StreamInContext> : KindIs<Kind::kStream> {};
template <>
struct KindOf<FlaggedEvent> : KindIs<Kind::kEvent> {};
template <>
struct KindOf<aclrtStreamConfigHandle> : KindIs<Kind::kStreamConfig> {};
template <>
struct KindOf<aclDataBuffer> : KindIs<Kind::kDataBuffer> {};
template <>
struct KindOf<aclTensorDesc> : KindIs<Kind::kTensorDesc> {};
template <>
struct KindOf<PhysicalMemory> : KindIs<Kind::kPhysicalMemory> {};

// A handle is a number in the guise of a pointer: the kind, and a number that is never used again. So a
// destroyed handle is known as such for ever, any other value as foreign, and none is ever dereferenced.
// Thread-safe, and usable in a fork.

/// The handle of object number `id` of its kind. Adding it again changes nothing.
void* add_handle(Kind kind, uint64_t id, std::shared_ptr<void> object);
/// A number for an object of a kind that has none of its own.
uint64_t next_handle_id();
/// Makes the object's address its handle: for structs whose members are public.
void add_address(Kind kind, const std::shared_ptr<void>& object);

/// The object of a handle. Fails with ACL_ERROR_INVALID_PARAM for null and ACL_ERROR_RT_INVALID_HANDLE for
/// what is no handle of that kind (any more), naming the argument.
std::shared_ptr<void> find_handle(Kind kind, const void* handle, const char* argument);
/// The same, and then it is no handle any more.
std::shared_ptr<void> take_handle(Kind kind, const void* handle, const char* argument);
/// The objects of all handles of a kind.
std::vector<std::shared_ptr<void>> handles_of(Kind kind);
void take_handles_if(Kind kind, const std::function<bool(const void* object)>& condition);

template <class T>
std::shared_ptr<T> handle(const void* value, const char* argument) {
  return std::static_pointer_cast<T>(find_handle(KindOf<T>::value, value, argument));
}
template <class T>
std::shared_ptr<T> taken(const void* value, const char* argument) {
  return std::static_pointer_cast<T>(take_handle(KindOf<T>::value, value, argument));
}
template <class T>
void* new_handle(std::shared_ptr<T> object) {
  return add_handle(KindOf<T>::value, next_handle_id(), std::move(object));
}

/// The stream of a handle, which must be of the current context; null: that context's default stream.
std::shared_ptr<Stream> stream_or_default(aclrtStream handle);

}  // namespace anynpu::abi
