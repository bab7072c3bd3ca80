#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/stream.h"

namespace anynpu {

/// A list of streams that does not keep them. What the tasks of a stream did that is gone happened before the
/// call that finds it gone. Adding takes constant time on average. Thread-safe.
class WeakStreams {
 public:
  void add(const std::shared_ptr<Stream>& stream) {
    std::lock_guard lock(mutex_);
    if (streams_.size() >= tidy_at_) {
      std::erase_if(streams_, [](const Entry& entry) { return entry.get() == nullptr; });
      tidy_at_ = std::max(kLeast, 2 * streams_.size());
    }
    streams_.push_back({stream, stream->gone()});
  }

  /// Appends those that still exist to `streams`.
  void append_to(std::vector<std::shared_ptr<Stream>>& streams) const {
    std::lock_guard lock(mutex_);
    for (const Entry& entry : streams_)
      if (auto stream = entry.get()) streams.push_back(std::move(stream));
  }

 private:
  struct Entry {
    std::weak_ptr<Stream> stream;
    std::shared_ptr<const std::atomic<bool>> gone;

    /// Null when it is gone. A weak_ptr that gives nothing orders nothing; the flag does.
    std::shared_ptr<Stream> get() const {
      auto found = stream.lock();
      if (found == nullptr) gone->wait(false, std::memory_order_acquire);
      return found;
    }
  };
  static constexpr size_t kLeast = 16;
  mutable std::mutex mutex_;
  std::vector<Entry> streams_;
  size_t tidy_at_ = kLeast;
};

}  // namespace anynpu
