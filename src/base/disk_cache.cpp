#include "base/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/sha256.h"

namespace anynpu {
namespace {

constexpr std::string_view kEntry = ".entry", kTemporary = ".writing";  // how files are called
constexpr int64_t kMostBytes = int64_t{1} << 28;                        // of an entry
constexpr time_t kAbandoned = 3600;  // seconds after which a file is written by nobody any more

void warn(std::string_view what, int error) {
  static std::atomic_flag warned;
  if (!warned.test_and_set() && logged(LogLevel::kWarning))
    write_line(concat("anynpu: the cache on disk: ", what, ": ", std::strerror(error)));
}

class File {
 public:
  explicit File(int number) : number_(number) {}
  File(const File&) = delete;
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  explicit operator bool() const { return number_ >= 0; }
  int number() const { return number_; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

/// Whether nobody else can change it.
bool is_own(const struct stat& status) {
  return status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string name_of(std::string_view key) { return hex(sha256(key)).append(kEntry); }

/// A file's bytes: the checksum of what follows, the key's length, the key, and the value.
std::string entry_of(std::string_view key, std::string_view value) {
  const auto length = static_cast<uint64_t>(key.size());
  std::string body(reinterpret_cast<const char*>(&length), sizeof(length));
  body.append(key).append(value);
  const Digest digest = sha256(body);
  return std::string(digest.begin(), digest.end()) + body;
}

std::optional<std::string> value_of(std::string_view entry, std::string_view key) {
  uint64_t length;
  constexpr size_t kStart = sizeof(Digest) + sizeof(length);
  if (entry.size() < kStart) return std::nullopt;
  const Digest digest = sha256(entry.substr(sizeof(Digest)));
  if (std::memcmp(digest.data(), entry.data(), sizeof(Digest)) != 0) return std::nullopt;
  std::memcpy(&length, entry.data() + sizeof(Digest), sizeof(length));
  entry.remove_prefix(kStart);
  if (length != key.size() || !entry.starts_with(key)) return std::nullopt;
  return std::string(entry.substr(key.size()));
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

bool read_all(int file, std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::read(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += static_cast<size_t>(count);
  }
  return true;
}

/// A name that no other thread and process takes.
std::string temporary_name() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) number = static_cast<uint64_t>(getpid());
  return concat(std::hex, number, kTemporary);
}

}  // namespace

DiskCache::DiskCache(const std::string& folder, int64_t limit) : limit_(limit) {
  std::error_code ignored;  // opening it says what is wrong
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), ignored);
  ::mkdir(folder.c_str(), S_IRWXU);
  File opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (!opened || ::fstat(opened.number(), &status) != 0)
    warn(folder, errno);
  else if (!is_own(status))
    warn(concat(folder, " can be changed by others, or is another user's"), EPERM);
  else
    folder_ = opened.release();
}

DiskCache::~DiskCache() {
  if (folder_ >= 0) ::close(folder_);
}

std::optional<std::string> DiskCache::find(std::string_view key) const {
  if (folder_ < 0) return std::nullopt;
  const std::string name = name_of(key);
  const File file(::openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    if (errno != ENOENT) warn(name, errno);
    return std::nullopt;
  }
  struct stat status;
  if (::fstat(file.number(), &status) != 0 || !S_ISREG(status.st_mode) || !is_own(status) ||
      status.st_size > kMostBytes)
    return std::nullopt;
  std::string bytes(static_cast<size_t>(status.st_size), '\0');
  auto value = read_all(file.number(), bytes) ? value_of(bytes, key) : std::nullopt;
  if (value) ::futimens(file.number(), nullptr);  // used now; of a folder that is only read, never mind
  return value;
}

void DiskCache::store(std::string_view key, std::string_view value) {
  if (folder_ < 0) return;
  const std::string entry = entry_of(key, value), temporary = temporary_name();
  File file(::openat(folder_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                     S_IRUSR | S_IWUSR));
  if (!file) return warn("writing", errno);
  bool whole = write_all(file.number(), entry);
  int error = errno;
  if (::close(file.release()) != 0 && whole) whole = false, error = errno;
  if (whole && ::renameat(folder_, temporary.c_str(), folder_, name_of(key).c_str()) != 0)
    whole = false, error = errno;
  if (!whole) {
    ::unlinkat(folder_, temporary.c_str(), 0);
    return warn("writing", error);
  }
  const auto size = static_cast<int64_t>(entry.size());
  const bool known = bytes_ >= 0;
  bytes_ += size;
  stored_ += size;
  if (!known || bytes_ > limit_ || stored_ > limit_ / 8) trim();
}

/// Looks through the folder: removes what others left half written, and what is too much.
void DiskCache::trim() {
  struct Entry {
    timespec used;
    int64_t size;
    std::string name;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  File again(::openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!again) return warn("reading the folder", errno);
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(again.number()), ::closedir);
  if (listing == nullptr) return warn("reading the folder", errno);
  again.release();
  while (const dirent* found = ::readdir(listing.get())) {
    const std::string_view name = found->d_name;
    const bool temporary = name.ends_with(kTemporary);
    struct stat status;
    if ((!temporary && !name.ends_with(kEntry)) ||
        ::fstatat(folder_, found->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
      continue;
    if (temporary && status.st_mtim.tv_sec + kAbandoned < ::time(nullptr)) {
      ::unlinkat(folder_, found->d_name, 0);
      continue;
    }
    total += status.st_size;
    if (!temporary) entries.push_back({status.st_mtim, status.st_size, std::string(name)});
  }
  if (total > limit_) {
    std::ranges::sort(entries, {},
                      [](const Entry& entry) { return std::pair(entry.used.tv_sec, entry.used.tv_nsec); });
    for (const Entry& entry : entries) {
      if (total <= limit_ / 4 * 3) break;  // with room for what comes next
      if (::unlinkat(folder_, entry.name.c_str(), 0) == 0 || errno == ENOENT) total -= entry.size;
    }
  }
  bytes_ = total;
  stored_ = 0;
}

}  // namespace anynpu
