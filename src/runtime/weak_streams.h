#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/stream.h"

namespace anynpu {

/// A list of streams that does not keep them. Adding takes constant time on average. Thread-safe.
class WeakStreams {
 public:
  void add(const std::shared_ptr<Stream>& stream) {
    std::lock_guard lock(mutex_);
    if (streams_.size() >= tidy_at_) {
      std::erase_if(streams_, [](const auto& weak) { return weak.expired(); });
      tidy_at_ = std::max(kLeast, 2 * streams_.size());
    }
    streams_.push_back(stream);
  }

  /// Appends those that still exist to `streams`.
  void append_to(std::vector<std::shared_ptr<Stream>>& streams) const {
    std::lock_guard lock(mutex_);
    for (const auto& weak : streams_)
      if (auto stream = weak.lock()) streams.push_back(std::move(stream));
  }

 private:
  static constexpr size_t kLeast = 16;
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Stream>> streams_;
  size_t tidy_at_ = kLeast;
};

}  // namespace anynpu
