#include "runtime/exporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/error.h"
#include "runtime/device.h"
#include "runtime/export_protocol.h"

namespace anynpu {
namespace {

constexpr timeval kPatience = {20, 0};

struct Known {
  std::mutex mutex;
  std::map<pid_t, std::weak_ptr<Exporter>> exporters;
};
Known& known() {
  static auto* made = new Known;  // outlives every thread
  return *made;
}

Request request_for(Request::Action action, ExportKind kind, const std::string& secret) {
  Request request = {action, kind, static_cast<uint8_t>(secret.size()), {}};
  std::memcpy(request.secret, secret.data(), std::min(secret.size(), kMostSecret));
  return request;
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

/// Whether the file is one that no process can shrink, and holds what the reply says.
bool is_whole(const Reply& reply, int file) {
  struct stat status = {};
  return fstat(file, &status) == 0 && (fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK) != 0 &&
         reply.offset <= static_cast<uint64_t>(status.st_size) &&
         reply.size <= static_cast<uint64_t>(status.st_size) - reply.offset;
}

}  // namespace

std::shared_ptr<Exporter> Exporter::connected(pid_t process) {
  std::lock_guard lock(known().mutex);
  auto& exporters = known().exporters;
  std::erase_if(exporters, [](const auto& entry) { return entry.second.expired(); });
  const auto found = exporters.find(process);
  auto exporter = found != exporters.end() ? found->second.lock() : nullptr;
  return exporter != nullptr && !exporter->silent_ ? exporter : nullptr;
}

std::shared_ptr<Exporter> Exporter::connect(pid_t process) {
  Descriptor connection = make_socket();
  limit_waiting(connection.get(), kPatience);
  const auto [address, size] = address_of(process);
  require(::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0,
          ErrorCode::kPeerFailed, "process ", process,
          ", which exported it, is gone or exports nothing any more: ", std::strerror(errno));
  require(peer_of_this_user(connection.get()).has_value(), ErrorCode::kNoPermission, "process ", process,
          " belongs to another user");
  std::shared_ptr<Exporter> exporter(new Exporter(std::move(connection)));
  std::lock_guard lock(known().mutex);
  known().exporters[process] = exporter;
  return exporter;
}

std::optional<std::pair<Reply, Descriptor>> Exporter::ask(const Request& request) {
  std::lock_guard lock(asking_);
  std::optional<std::pair<Reply, Descriptor>> answer;
  if (!silent_ && send(connection_.get(), &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request))
    answer = receive_reply(connection_.get());
  if (!answer) silent_ = true;
  return answer;
}

Exporter::Imported Exporter::import(pid_t process, const std::string& secret, ExportKind kind) {
  Device::require_usable();
  const Request request = request_for(Request::kImport, kind, secret);
  std::shared_ptr<Exporter> exporter = connected(process);
  auto answer = exporter != nullptr ? exporter->ask(request) : std::nullopt;
  if (!answer) {  // where there was a connection, the process may have ended it, and may be another now
    exporter = connect(process);
    answer = exporter->ask(request);
  }
  require(answer.has_value(), ErrorCode::kPeerFailed, "process ", process,
          ", which exported it, does not answer");
  auto& [reply, file] = *answer;
  require(reply.status != Reply::kUnknown, ErrorCode::kInvalidHandle, "process ", process,
          " exports nothing of that kind under that key (any more)");
  require(reply.status != Reply::kNotAllowed, ErrorCode::kNoPermission, "process ", process,
          ", which exported it, does not let process ", getpid(), " import it");
  require(is_whole(reply, file.get()), ErrorCode::kPeerFailed, "process ", process,
          " gave a file that is not what it exports");
  return {{std::move(file), reply.size, reply.offset}, std::move(exporter)};
}

void Exporter::give_back(const std::string& secret) const {
  const Request request = request_for(Request::kGiveBack, ExportKind::kLoan, secret);
  send(connection_.get(), &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace anynpu
