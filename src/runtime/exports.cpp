#include "runtime/exports.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/executor.h"

namespace anynpu {
namespace {

constexpr size_t kMostSecret = 32;
constexpr timeval kServerPatience = {1, 0}, kClientPatience = {20, 0};
constexpr int kLookForEnd = 200;  // ms
constexpr std::chrono::seconds kNameLimit{2};

// The protocol: one message each way on a connection of its own.
struct Request {
  ExportKind kind;
  uint8_t secret_size;
  char secret[kMostSecret];
};
struct Reply {
  enum Status : uint32_t { kGiven, kUnknown, kNotAllowed } status;
  uint64_t size, offset;
};

/// The socket of a process. Its name holds the name space that the process's number belongs to.
std::pair<sockaddr_un, socklen_t> address_of(pid_t process) {
  struct stat name_space = {};
  stat("/proc/self/ns/pid", &name_space);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = concat("anynpu.", name_space.st_ino, ".", process);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // after a zero: abstract
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())};
}

Descriptor make_socket() { return Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

void limit_waiting(int socket, timeval patience) {
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

/// The socket of this process. Its name stays in use for a moment when the last one was closed while another
/// thread started a program: a child between vfork() and the end of exec() still holds it.
Descriptor listen_as(pid_t process) {
  const auto [address, size] = address_of(process);
  const auto deadline = std::chrono::steady_clock::now() + kNameLimit;
  while (true) {
    Descriptor socket = make_socket();
    if (socket && bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
        listen(socket.get(), SOMAXCONN) == 0)
      return socket;
    require(errno == EADDRINUSE && std::chrono::steady_clock::now() < deadline, ErrorCode::kInternal,
            "exporting to other processes: the socket @", address.sun_path + 1, ": ", std::strerror(errno));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Who is at the other end, when it is this user; both ends ask.
std::optional<pid_t> peer_of_this_user(int connection) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid())
    return std::nullopt;
  return peer.pid;
}

void send_reply(int connection, Reply reply, int file) {
  iovec data = {&reply, sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (reply.status == Reply::kGiven) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(file));
  }
  sendmsg(connection, &message, MSG_NOSIGNAL);
}

/// The reply and the file in it; nothing when no whole reply came.
std::optional<std::pair<Reply, Descriptor>> receive_reply(int connection) {
  Reply reply = {};
  iovec data = {&reply, sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  Descriptor file;
  const cmsghdr* header = received >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    file = Descriptor(fd);
  }
  if (received != sizeof(reply) || (reply.status == Reply::kGiven) != static_cast<bool>(file))
    return std::nullopt;
  return std::pair{reply, std::move(file)};
}

}  // namespace

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  require(getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count), ErrorCode::kInternal,
          "the system gives no random bytes: ", std::strerror(errno));
  return bytes;
}

Descriptor make_memory_file(size_t size) {
  Descriptor file(memfd_create("anynpu", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = file && ftruncate(file.get(), static_cast<off_t>(size)) == 0 &&
                    fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0;
  return made ? std::move(file) : Descriptor();
}

Exports& Exports::instance() {
  static auto* exports = new Exports;  // outlives every thread
  return *exports;
}

std::string Exports::add(Export exported, const std::function<std::string()>& make_secret) {
  Device::require_usable();
  std::lock_guard lock(mutex_);
  std::string secret = make_secret();
  while (exports_.contains(secret)) secret = make_secret();
  if (!socket_) start();
  exports_.emplace(secret, std::move(exported));
  return secret;
}

void Exports::allow(const std::string& secret, std::span<const pid_t> processes) {
  Device::require_usable();
  std::lock_guard lock(mutex_);
  const auto found = exports_.find(secret);
  require(found != exports_.end(), ErrorCode::kInvalidHandle, "this process exports nothing under that key");
  found->second.allowed.insert(processes.begin(), processes.end());
}

void Exports::remove(const std::string& secret) {
  Device::require_usable();
  std::lock_guard lock(mutex_);
  require(exports_.erase(secret) != 0, ErrorCode::kInvalidHandle,
          "this process exports nothing under that key (any more)");
}

/// Opens the socket and starts the thread that serves it.
void Exports::start() {
  socket_ = listen_as(getpid());
  try {
    start_service_thread("npu-export", [this] { serve(); });
  } catch (const Error&) {
    socket_ = Descriptor();
    throw;
  }
}

/// Answers until there are no exports. Closing takes place under the lock, so that who adds an export finds
/// either a socket that is served or a name that is free.
void Exports::serve() {
  pollfd listening = {socket_.get(), POLLIN, 0};  // only this thread changes it
  while (true) {
    if (poll(&listening, 1, kLookForEnd) > 0) {
      const Descriptor connection(accept4(listening.fd, nullptr, nullptr, SOCK_CLOEXEC));
      if (connection) {
        limit_waiting(connection.get(), kServerPatience);
        answer(connection.get());
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // for instance: no descriptors are left
      }
    }
    std::lock_guard lock(mutex_);
    std::erase_if(exports_, [](const auto& entry) { return entry.second.owner.expired(); });
    if (!exports_.empty()) continue;
    socket_ = Descriptor();
    return;
  }
}

void Exports::answer(int connection) {
  const auto peer = peer_of_this_user(connection);
  Request request = {};
  if (!peer || recv(connection, &request, sizeof(request), 0) != sizeof(request) ||
      request.secret_size > kMostSecret)
    return;
  std::unique_lock lock(mutex_);
  const auto found = exports_.find({request.secret, request.secret_size});
  const bool known = found != exports_.end() && found->second.kind == request.kind;
  const auto owner = known ? found->second.owner.lock() : nullptr;  // keeps the file open
  if (owner == nullptr) {
    lock.unlock();
    return send_reply(connection, {Reply::kUnknown, 0, 0}, -1);
  }
  const Export& exported = found->second;
  const bool allowed =
      exported.importers == Importers::kAnyProcess || *peer == getpid() || exported.allowed.contains(*peer);
  const Reply reply =
      allowed ? Reply{Reply::kGiven, exported.size, exported.offset} : Reply{Reply::kNotAllowed, 0, 0};
  const int file = exported.file;
  lock.unlock();
  send_reply(connection, reply, file);
}

Import Exports::import(pid_t process, const std::string& secret, ExportKind kind) {
  Device::require_usable();
  const Descriptor connection = make_socket();
  limit_waiting(connection.get(), kClientPatience);
  const auto [address, size] = address_of(process);
  require(connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0,
          ErrorCode::kPeerFailed, "process ", process,
          ", which exported it, is gone or exports nothing any more: ", std::strerror(errno));
  require(peer_of_this_user(connection.get()).has_value(), ErrorCode::kNoPermission, "process ", process,
          " belongs to another user");
  Request request = {kind, static_cast<uint8_t>(secret.size()), {}};
  std::memcpy(request.secret, secret.data(), std::min(secret.size(), kMostSecret));
  std::optional<std::pair<Reply, Descriptor>> answer;
  if (send(connection.get(), &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request))
    answer = receive_reply(connection.get());
  require(answer.has_value(), ErrorCode::kPeerFailed, "process ", process,
          ", which exported it, does not answer");
  auto& [reply, file] = *answer;
  require(reply.status != Reply::kUnknown, ErrorCode::kInvalidHandle, "process ", process,
          " exports nothing of that kind under that key (any more)");
  require(reply.status != Reply::kNotAllowed, ErrorCode::kNoPermission, "process ", process,
          ", which exported it, does not let process ", getpid(), " import it");
  struct stat status = {};
  const bool whole = fstat(file.get(), &status) == 0 &&
                     (fcntl(file.get(), F_GET_SEALS) & F_SEAL_SHRINK) != 0 &&
                     reply.offset <= static_cast<uint64_t>(status.st_size) &&
                     reply.size <= static_cast<uint64_t>(status.st_size) - reply.offset;
  require(whole, ErrorCode::kPeerFailed, "process ", process, " gave a file that is not what it exports");
  return {std::move(file), reply.size, reply.offset};
}

}  // namespace anynpu
