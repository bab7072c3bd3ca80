#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace anynpu {

/// A folder of values by key, for as many processes as like: each entry is a file that appears whole, and
/// says its key and a checksum, which are checked when it is read. Only the user's own files in the user's
/// own folder are trusted, and symbolic links are not followed. Whatever fails is as if the entry did not
/// exist; the first failure of a process is a warning in the log. Thread-safe, and whole in forks.
class DiskCache {
 public:
  /// `folder` is made where it does not exist, for its user only. Entries that were not used for longest are
  /// removed when all of them take more than about `limit` bytes.
  DiskCache(const std::string& folder, int64_t limit);
  DiskCache(const DiskCache&) = delete;
  ~DiskCache();

  std::optional<std::string> find(std::string_view key) const;
  void store(std::string_view key, std::string_view value);

 private:
  void trim();

  const int64_t limit_;
  int folder_ = -1;                  ///< -1: there is no cache
  std::atomic<int64_t> bytes_ = -1;  ///< of entries, by the last look and what was stored since; -1: unknown
  std::atomic<int64_t> stored_ = 0;  ///< bytes, since the last look
};

}  // namespace anynpu
