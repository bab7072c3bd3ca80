#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <optional>
#include <string>
#include <utility>

#include "runtime/exports.h"

namespace anynpu {

// What a process that exports and one that imports say to each other; for Exports and Exporter alone. A
// connection carries messages of these two kinds; each import is answered, in order.

constexpr size_t kMostSecret = 32;

struct Request {
  enum Action : uint8_t { kImport, kGiveBack } action;
  ExportKind kind;
  uint8_t secret_size;
  char secret[kMostSecret];
};
struct Reply {
  enum Status : uint32_t { kGiven, kUnknown, kNotAllowed } status;
  uint64_t size, offset;
};

/// The socket of a process. Its name holds the name space that the process's number belongs to.
std::pair<sockaddr_un, socklen_t> address_of(pid_t process);

Descriptor make_socket();

void limit_waiting(int socket, timeval patience);

/// Who is at the other end, when it is this user; both ends ask.
std::optional<pid_t> peer_of_this_user(int connection);

}  // namespace anynpu
