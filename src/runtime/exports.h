#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
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

struct Request;

/// What the file of an export is. A loan is memory that the exporter wants to know the users of.
enum class ExportKind : uint8_t { kPhysicalMemory, kMemory, kEvent, kLoan };

/// What an import receives: `size` bytes of the file from `offset` on.
struct Import {
  Descriptor file;
  uint64_t size, offset;
};

/// Files in memory that this process lets others use. A thread serves them on an abstract socket, so nothing
/// is left of them when the process ends, however it ends; it hands a file to a process that knows the secret
/// of its export and may import it, and nothing else. See Exporter for the other end. Processes see each
/// other that share the name spaces for processes and for the network. Thread-safe, and refused in forks.
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
    /// Of a loan: its owner, kept until the first import. Each import keeps it, too, until it is given back
    /// or the process that imported ends.
    std::shared_ptr<void> on_its_way = nullptr;
  };

  /// Exports under a secret that `make_secret` makes; the secret.
  std::string add(Export exported, const std::function<std::string()>& make_secret);
  /// Lets further processes import. Raises kInvalidHandle when there is no such export.
  void allow(const std::string& secret, std::span<const pid_t> processes);
  /// Ends an export; imports keep what they have. Raises kInvalidHandle when there is no such export.
  void remove(const std::string& secret);
  /// Acts on what came from importers so far: afterwards, loans that were given back are over.
  void settle();

 private:
  struct Connection {
    Descriptor socket;
    pid_t peer;
    std::unordered_multimap<std::string, std::shared_ptr<void>> borrowed = {};  // loans, by secret
  };

  Exports() = default;
  void start();
  void serve();
  void accept_one();
  void give(Connection& connection, const Request& request);
  bool end_if_unused();

  std::mutex serving_;                 // locked before mutex_
  std::list<Connection> connections_;  // guarded by serving_
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
