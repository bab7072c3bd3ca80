#include "runtime/handles.h"

#include <pthread.h>

#include <atomic>
#include <new>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "base/error.h"

namespace anynpu {
namespace {

constexpr const char* kKindNames[] = {"a context",
                                      "a stream",
                                      "an event",
                                      "a stream configuration",
                                      "a data buffer",
                                      "a tensor description",
                                      "a handle of physical memory",
                                      "the report of a failed task",
                                      "a tensor",
                                      "a scalar",
                                      "an array of integers",
                                      "an array of floats",
                                      "an array of bools",
                                      "a list of tensors",
                                      "a list of scalars",
                                      "an executor"};
constexpr int kKindShift = 56;  // no address of a process has these bits

struct Entry {
  HandleKind kind;
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

uintptr_t number(HandleKind kind, uint64_t id) {
  return (uintptr_t{static_cast<uint8_t>(kind)} + 1) << kKindShift | id;
}

uintptr_t number(const void* handle) { return reinterpret_cast<uintptr_t>(handle); }

[[noreturn]] void fail_unknown(HandleKind wanted, const void* handle, const char* argument,
                               const Entry* entry) {
  const char* wanted_name = name_of(wanted);
  const uintptr_t kind = (number(handle) >> kKindShift) - 1;
  const bool known_kind = kind < std::size(kKindNames);
  if (entry != nullptr || (known_kind && kind != static_cast<uintptr_t>(wanted)))
    raise(ErrorCode::kInvalidHandle, argument, " (", handle, ") is ",
          kKindNames[entry != nullptr ? static_cast<uintptr_t>(entry->kind) : kind], ", not ", wanted_name);
  raise(ErrorCode::kInvalidHandle, argument, " (", handle, ") is not ", wanted_name,
        known_kind ? ": it was destroyed, or its context was" : " that this library made");
}

}  // namespace

const char* name_of(HandleKind kind) { return kKindNames[static_cast<int>(kind)]; }

void* handle_with(HandleKind kind, uint64_t id) { return reinterpret_cast<void*>(number(kind, id)); }

void* add_handle(HandleKind kind, uint64_t id, std::shared_ptr<void> object) {
  std::unique_lock lock(registry.mutex);
  registry.entries.try_emplace(number(kind, id), Entry{kind, std::move(object)});
  return handle_with(kind, id);
}

uint64_t next_handle_id() {
  static std::atomic<uint64_t> next = 1;
  return next++;
}

void add_address(HandleKind kind, const std::shared_ptr<void>& object) {
  std::unique_lock lock(registry.mutex);
  registry.entries.insert_or_assign(number(object.get()), Entry{kind, object});
}

std::shared_ptr<void> find_handle(HandleKind kind, const void* handle, const char* argument) {
  std::shared_lock lock(registry.mutex);
  const auto found = registry.entries.find(number(handle));
  const bool known = found != registry.entries.end();
  if (!known || found->second.kind != kind)
    fail_unknown(kind, handle, argument, known ? &found->second : nullptr);
  return found->second.object;
}

std::shared_ptr<void> take_handle(HandleKind kind, const void* handle, const char* argument) {
  (void)find_handle(kind, handle, argument);
  std::unique_lock lock(registry.mutex);
  auto node = registry.entries.extract(number(handle));
  if (node.empty()) fail_unknown(kind, handle, argument, nullptr);  // another thread was faster
  return std::move(node.mapped().object);
}

void drop_handle(const void* handle) noexcept {
  decltype(registry.entries)::node_type dropped;  // goes without the lock
  std::unique_lock lock(registry.mutex);
  dropped = registry.entries.extract(number(handle));
}

std::vector<std::shared_ptr<void>> handles_of(HandleKind kind) {
  std::vector<std::shared_ptr<void>> found;
  std::shared_lock lock(registry.mutex);
  for (const auto& [value, entry] : registry.entries)
    if (entry.kind == kind) found.push_back(entry.object);
  return found;
}

void take_handles_if(HandleKind kind, const std::function<bool(const void* object)>& condition) {
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

}  // namespace anynpu
