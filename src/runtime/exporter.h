#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "runtime/exports.h"

namespace anynpu {

struct Reply;
struct Request;

/// A process that exports, as others know it: the connection to it, which stays while anything of it is
/// borrowed. The process gives up what it lent when the connection ends, however this process ends.
/// Thread-safe.
class Exporter {
 public:
  struct Imported {
    Import what;
    std::shared_ptr<Exporter> by;
  };
  /// What `process` exports under `secret`. Raises kPeerFailed when it is gone or does not answer,
  /// kInvalidHandle when it exports no such thing (any more), kNoPermission when this process may not.
  static Imported import(pid_t process, const std::string& secret, ExportKind kind);

  /// Ends one import of a loan. Does not wait: an exporter that reads nothing for so long that the system
  /// keeps no more messages for it has the loan until this process ends.
  void give_back(const std::string& secret) const;

 private:
  explicit Exporter(Descriptor connection) : connection_(std::move(connection)) {}
  static std::shared_ptr<Exporter> connected(pid_t process);  ///< or null
  static std::shared_ptr<Exporter> connect(pid_t process);
  std::optional<std::pair<Reply, Descriptor>> ask(const Request& request);

  const Descriptor connection_;
  std::mutex asking_;
  std::atomic<bool> silent_ = false;  // an answer did not come: it is asked nothing more
};

}  // namespace anynpu
