#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/context.h"
#include "runtime/event.h"
#include "runtime/physical_memory.h"
#include "runtime/stream.h"

namespace anynpu {

// What other libraries and languages hold of the runtime's objects. A handle is a number in the guise of a
// pointer: the kind, and a number that is never used again. So a destroyed handle is known as such for ever,
// any other value as foreign, and none is ever dereferenced. There is one registry in a process, whichever
// interface made a handle. Thread-safe, and usable in a fork.

/// A stream as its handle names it: usable where its context is current.
struct StreamInContext {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<Context> context;
};

/// An event as its handle names it: whether streams may wait for it, and the points in streams at which waits
/// for it are over.
struct HandledEvent {
  HandledEvent(bool timing, bool is_waitable) : event(timing), waitable(is_waitable) {}
  explicit HandledEvent(std::shared_ptr<SharedEvent> shared) : event(std::move(shared)), waitable(true) {}

  Event event;
  const bool waitable;
  std::mutex mutex;
  std::vector<std::shared_ptr<Recording>> waits;  // guarded by mutex
};

/// What a handle stands for.
enum class HandleKind : uint8_t {
  kContext,
  kStream,
  kEvent,
  kStreamConfig,
  kDataBuffer,
  kTensorDesc,
  kPhysicalMemory,
  kExceptionInfo,
  kTensor,
  kScalar,
  kIntArray,
  kFloatArray,
  kBoolArray,
  kTensorList,
  kScalarList,
  kExecutor
};
const char* name_of(HandleKind kind);  ///< with its article

template <class T>
struct KindOf;
template <HandleKind kind>
using KindIs = std::integral_constant<HandleKind, kind>;
template <>
struct KindOf<Context> : KindIs<HandleKind::kContext> {};
template <>
struct KindOf<StreamInContext> : KindIs<HandleKind::kStream> {};
template <>
struct KindOf<HandledEvent> : KindIs<HandleKind::kEvent> {};
template <>
struct KindOf<PhysicalMemory> : KindIs<HandleKind::kPhysicalMemory> {};

/// The handle that object number `id` of its kind has where it has one.
void* handle_with(HandleKind kind, uint64_t id);
/// The handle of object number `id` of its kind. Adding it again changes nothing.
void* add_handle(HandleKind kind, uint64_t id, std::shared_ptr<void> object);
/// A number for an object of a kind that has none of its own.
uint64_t next_handle_id();
/// Makes the object's address its handle: for structs whose members are public.
void add_address(HandleKind kind, const std::shared_ptr<void>& object);

/// The object of a handle. Raises kInvalidHandle for what is no handle of that kind (any more), naming the
/// argument.
std::shared_ptr<void> find_handle(HandleKind kind, const void* handle, const char* argument);
/// The same, and then it is no handle any more.
std::shared_ptr<void> take_handle(HandleKind kind, const void* handle, const char* argument);
void drop_handle(const void* handle) noexcept;  ///< the same for any value: also one that is no handle
/// The objects of all handles of a kind.
std::vector<std::shared_ptr<void>> handles_of(HandleKind kind);
void take_handles_if(HandleKind kind, const std::function<bool(const void* object)>& condition);

template <class T>
std::shared_ptr<T> object_of(const void* handle, const char* argument) {
  return std::static_pointer_cast<T>(find_handle(KindOf<T>::value, handle, argument));
}
template <class T>
void* new_handle(std::shared_ptr<T> object) {
  return add_handle(KindOf<T>::value, next_handle_id(), std::move(object));
}

}  // namespace anynpu
