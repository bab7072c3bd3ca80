#include "abi/handle.h"

#include <pthread.h>

#include <atomic>
#include <new>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "abi/call.h"

namespace anynpu::abi {
namespace {

constexpr const char* kKindNames[] = {"a context",
                                      "a stream",
                                      "an event",
                                      "a stream configuration",
                                      "a data buffer",
                                      "a tensor description",
                                      "a handle of physical memory",
                                      "the report of a failed task"};
constexpr int kKindShift = 56;  // no address of a process has these bits

struct Entry {
  Kind kind;
  std::shared_ptr<void> object;
};

struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<uintptr_t, Entry> entries;
};

Registry& make_registry();

/// Made when the library is loaded: no fork can find it half made. Outlives every thread.
Registry& registry = make_registry();

/// A fork takes place while the mutex is held, so that the entries are whole in the child; there the mutex
/// begins anew, because the threads that held and awaited it do not exist.
Registry& make_registry() {
  pthread_atfork([] { registry.mutex.lock(); }, [] { registry.mutex.unlock(); },
                 [] { new (&registry.mutex) std::shared_mutex; });
  return *new Registry;
}

uintptr_t number(Kind kind, uint64_t id) {
  return (uintptr_t{static_cast<uint8_t>(kind)} + 1) << kKindShift | id;
}

uintptr_t number(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

[[noreturn]] void fail_unknown(Kind wanted, const void* handle, const char* argument, const Entry* entry) {
  const char* wanted_name = kKindNames[static_cast<int>(wanted)];
  const uintptr_t kind = (number(handle) >> kKindShift) - 1;
  const bool known_kind = kind < std::size(kKindNames);
  if (entry != nullptr || (known_kind && kind != static_cast<uintptr_t>(wanted)))
    fail(ACL_ERROR_RT_INVALID_HANDLE, argument, " (", handle, ") is ",
         kKindNames[entry != nullptr ? static_cast<uintptr_t>(entry->kind) : kind], ", not ", wanted_name);
  fail(ACL_ERROR_RT_INVALID_HANDLE, argument, " (", handle, ") is not ", wanted_name,
       known_kind ? ": it was destroyed, or its context was" : " that this library made");
}

}  // namespace

void* add_handle(Kind kind, uint64_t id, std::shared_ptr<void> object) {
  const uintptr_t value = number(kind, id);
  std::unique_lock lock(registry.mutex);
  registry.entries.try_emplace(value, Entry{kind, std::move(object)});
  return reinterpret_cast<void*>(value);
}

uint64_t next_handle_id() {
  static std::atomic<uint64_t> next = 1;
  return next++;
}

void add_address(Kind kind, const std::shared_ptr<void>& object) {
  std::unique_lock lock(registry.mutex);
  registry.entries.insert_or_assign(number(object.get()), Entry{kind, object});
}

std::shared_ptr<void> find_handle(Kind kind, const void* handle, const char* argument) {
  check(handle != nullptr, ACL_ERROR_INVALID_PARAM, argument, " is null; it must be ",
        kKindNames[static_cast<int>(kind)]);
  std::shared_lock lock(registry.mutex);
  const auto found = registry.entries.find(number(handle));
  const bool known = found != registry.entries.end();
  if (!known || found->second.kind != kind)
    fail_unknown(kind, handle, argument, known ? &found->second : nullptr);
  return found->second.object;
}

std::shared_ptr<void> take_handle(Kind kind, const void* handle, const char* argument) {
  (void)find_handle(kind, handle, argument);
  std::unique_lock lock(registry.mutex);
  auto node = registry.entries.extract(number(handle));
  if (node.empty()) fail_unknown(kind, handle, argument, nullptr);  // another thread was faster
  return std::move(node.mapped().object);
}

std::vector<std::shared_ptr<void>> handles_of(Kind kind) {
  std::vector<std::shared_ptr<void>> found;
  std::shared_lock lock(registry.mutex);
  for (const auto& [value, entry] : registry.entries)
    if (entry.kind == kind) found.push_back(entry.object);
  return found;
}

void take_handles_if(Kind kind, const std::function<bool(const void* object)>& condition) {
  std::vector<std::shared_ptr<void>> taken;  // destroyed without the lock
  std::unique_lock lock(registry.mutex);
  auto& entries = registry.entries;
  for (auto it = entries.begin(); it != entries.end();) {
    if (it->second.kind == kind && condition(it->second.object.get())) {
      taken.push_back(std::move(it->second.object));
      it = entries.erase(it);
    } else {
      ++it;
    }
  }
  lock.unlock();
}

std::shared_ptr<Stream> stream_or_default(aclrtStream handle) {
  const auto context = Context::current();
  if (handle == nullptr) return context->default_stream();
  const auto found = abi::handle<StreamInContext>(handle, "stream");
  check(found->context == context, ACL_ERROR_RT_STREAM_CONTEXT, "stream (", handle, ") belongs to ",
        found->context->device() == context->device() ? "another context of device " : "device ",
        found->context->device(), ", but the current context of the thread is of device ", context->device());
  return found->stream;
}

}  // namespace anynpu::abi
