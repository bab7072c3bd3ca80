#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>

#include "base/descriptor.h"

namespace anynpu {

/// Who may import an export, besides the process itself: processes that allow() names, or any. Both only of
/// the same user.
enum class Importers : uint8_t { kAllowed, kAnyProcess };

/// What the file of an export is.
enum class ExportKind : uint8_t { kPhysicalMemory, kMemory, kEvent };

/// What an import receives: `size` bytes of the file from `offset` on.
struct Import {
  Descriptor file;
  uint64_t size, offset;
};

/// Files in memory that this process lets others use. A thread serves them on an abstract socket, so nothing
/// is left of them when the process ends, however it ends; it hands a file to a process that knows the secret
/// of its export and may import it, and nothing else. Processes see each other that share the name spaces for
/// processes and for the network. Thread-safe, and refused in forks.
class Exports {
 public:
  static Exports& instance();

  /// What is exported: its descriptor as long as `owner` lives, and who may have it.
  struct Export {
    ExportKind kind;
    Importers importers;
    std::weak_ptr<void> owner;
    int file;
    uint64_t size, offset;
    std::set<pid_t> allowed = {};
  };

  /// Exports under a secret that `make_secret` makes; the secret.
  std::string add(Export exported, const std::function<std::string()>& make_secret);
  /// Lets further processes import. Raises kInvalidHandle when there is no such export.
  void allow(const std::string& secret, std::span<const pid_t> processes);
  /// Ends an export; imports keep what they have. Raises kInvalidHandle when there is no such export.
  void remove(const std::string& secret);

  /// What `process` exports under `secret`. Raises kPeerFailed when it is gone or does not answer,
  /// kInvalidHandle when it exports no such thing (any more), kNoPermission when this process may not.
  static Import import(pid_t process, const std::string& secret, ExportKind kind);

 private:
  Exports() = default;
  void start();
  void serve();
  void answer(int connection);

  std::mutex mutex_;
  std::unordered_map<std::string, Export> exports_;  // by secret
  Descriptor socket_;                                // while its thread runs, which also closes it
};

/// Bytes that nobody can guess.
std::string random_bytes(size_t count);

/// A file of `size` bytes in memory, which can neither shrink nor grow: no process that maps it can take
/// memory from the others. None, and errno, where the system refuses.
Descriptor make_memory_file(size_t size);

}  // namespace anynpu
