#include "runtime/exports.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/executor.h"
#include "runtime/export_protocol.h"

namespace anynpu {
namespace {

constexpr timeval kPatience = {1, 0};
constexpr int kLookForEnd = 200;  // ms
constexpr auto kBindLimit = std::chrono::seconds(5);

/// False, and errno, when the address cannot be had. A child that this process is just starting may hold a
/// former socket of it until it executes its program.
bool bind_in_time(int socket, const sockaddr_un& address, socklen_t size) {
  const auto deadline = std::chrono::steady_clock::now() + kBindLimit;
  while (bind(socket, reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    if (errno != EADDRINUSE || std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
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

}  // namespace

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

std::optional<pid_t> peer_of_this_user(int connection) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid())
    return std::nullopt;
  return peer.pid;
}

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
  Descriptor socket = make_socket();
  const auto [address, size] = address_of(getpid());
  const bool listening =
      socket && bind_in_time(socket.get(), address, size) && listen(socket.get(), SOMAXCONN) == 0;
  require(listening, ErrorCode::kInternal, "exporting to other processes: the socket @", address.sun_path + 1,
          ": ", std::strerror(errno));
  socket_ = std::move(socket);
  try {
    start_service_thread("npu-export", [this] { serve(); });
  } catch (const Error&) {
    socket_ = Descriptor();
    throw;
  }
}

void Exports::serve() {
  do {
    std::vector<pollfd> looked_at = {{socket_.get(), POLLIN, 0}};  // only this thread changes socket_
    {
      std::lock_guard serving(serving_);
      for (const Connection& connection : connections_)
        looked_at.push_back({connection.socket.get(), POLLIN, 0});
    }
    if (poll(looked_at.data(), looked_at.size(), kLookForEnd) > 0) {
      if (looked_at.front().revents != 0) accept_one();
      settle();
    }
  } while (!end_if_unused());
}

void Exports::accept_one() {
  Descriptor socket(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const auto peer = socket ? peer_of_this_user(socket.get()) : std::nullopt;
  if (!socket) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // perhaps no descriptors are left
  if (!peer) return;
  limit_waiting(socket.get(), kPatience);
  std::lock_guard serving(serving_);
  connections_.push_back({std::move(socket), *peer});
}

/// Closing takes place under the lock, so that who adds an export finds either a socket that is served or a
/// name that is free.
bool Exports::end_if_unused() {
  std::scoped_lock lock(serving_, mutex_);
  std::erase_if(exports_, [](const auto& entry) { return entry.second.owner.expired(); });
  if (!exports_.empty()) return false;
  connections_.clear();
  socket_ = Descriptor();
  return true;
}

void Exports::settle() {
  std::lock_guard serving(serving_);  // also while loans end, so that they are over for whoever calls next
  std::erase_if(connections_, [&](Connection& connection) {
    while (true) {
      Request request = {};
      const ssize_t received = recv(connection.socket.get(), &request, sizeof(request), MSG_DONTWAIT);
      if (received < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (received != sizeof(request) || request.secret_size > kMostSecret) return true;
      if (request.action == Request::kImport) {
        give(connection, request);
      } else if (const auto found = connection.borrowed.find({request.secret, request.secret_size});
                 found != connection.borrowed.end()) {
        connection.borrowed.erase(found);
      }
    }
  });
}

void Exports::give(Connection& connection, const Request& request) {
  const std::string secret(request.secret, request.secret_size);
  std::unique_lock lock(mutex_);
  const auto found = exports_.find(secret);
  const bool known = found != exports_.end() && found->second.kind == request.kind;
  auto owner = known ? found->second.owner.lock() : nullptr;
  if (owner == nullptr) {
    lock.unlock();
    return send_reply(connection.socket.get(), {Reply::kUnknown, 0, 0}, -1);
  }
  Export& exported = found->second;
  const bool allowed = exported.importers == Importers::kAnyProcess || connection.peer == getpid() ||
                       exported.allowed.contains(connection.peer);
  const Reply reply =
      allowed ? Reply{Reply::kGiven, exported.size, exported.offset} : Reply{Reply::kNotAllowed, 0, 0};
  if (allowed && exported.kind == ExportKind::kLoan) {
    connection.borrowed.emplace(secret, owner);
    exported.on_its_way = nullptr;
  }
  // Of its own, so that an importer that has the reply finds the owner to be nobody's here.
  const Descriptor file(fcntl(exported.file, F_DUPFD_CLOEXEC, 0));
  lock.unlock();
  owner.reset();
  send_reply(connection.socket.get(), reply, file.get());
}

}  // namespace anynpu
