#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/unique_function.h"

namespace anynpu {

struct Block;

/// What a task writes of device memory: all of it perhaps, or allocations, each named by an address in it.
/// The addresses are the caller's, and are read by the call that takes them.
class Writes {
 public:
  static Writes anything() { return Writes(true, {}); }
  static Writes nothing() { return Writes(false, {}); }
  explicit Writes(std::span<void* const> addresses) : Writes(false, addresses) {}

  bool are_anything() const { return anything_; }
  std::span<void* const> addresses() const { return addresses_; }

 private:
  Writes(bool anything, std::span<void* const> addresses) : anything_(anything), addresses_(addresses) {}

  bool anything_;
  std::span<void* const> addresses_;
};

/// Whether the content of a block of a pool is still what it was, for whoever keeps something that was
/// computed from it. A watch ends with the first task that may write the block, with the block itself, and
/// where another process, or whoever keeps an address, may write it too.
///
/// A task counts from when it is enqueued: a stream notes what it writes when it takes the task, before it
/// can run. So what was enqueued when the watch began may still write; once that is done the watch is
/// settled. What a task reads that is enqueued while the watch is settled and has not ended is what every
/// later one reads, until it ends: no order of streams or threads matters. Thread-safe.
///
/// What the host writes by a pointer of its own is not seen, as it is no task's: device memory is not the
/// host's to write.
class ContentWatch {
 public:
  /// Begins to watch; null where the block has a watch already, or others may write it unseen. `ended` is
  /// called at most once, without locks, by the thread that ends the watch; never after stop().
  static std::shared_ptr<ContentWatch> begin(const Block* block, UniqueFunction ended);
  ContentWatch(const ContentWatch&) = delete;

  bool is_settled() const { return settled_.load(std::memory_order_acquire); }
  bool has_ended() const { return ended_.load(std::memory_order_acquire); }
  void stop();

  /// A block at that address goes back to its pool.
  static void note_freed(const void* address) {
    if (count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      end_freed(address);
  }
  /// Memory that others may write, unseen, from now on: it is not watched any more.
  static void exclude(const void* address, size_t size);
  /// The same of a block, until it is freed: of one that somebody holds for as long as he may write it.
  static void exclude_block(const void* address, size_t size);

 private:
  struct Registry;

  ContentWatch(uintptr_t begin, uintptr_t end, UniqueFunction ended)
      : begin_(begin), end_(end), on_end_(std::move(ended)) {}
  static Registry& registry();
  using Ended = std::vector<std::shared_ptr<ContentWatch>>;
  friend class NotedWrites;

  /// Ends those that nobody ended before, and returns them, to be called back.
  static Ended end(Ended watches);
  static Ended end_of(const Writes& writes);
  static void call_back(const Ended& watches);
  static void end_freed(const void* address);
  static void exclude(const void* address, size_t size, bool until_freed);

  /// How many watches there are, and blocks that are excluded. A thread that enqueues a task after a watch
  /// looked at the stream (see begin()) finds it counted, as both hold the stream's mutex in between.
  static inline std::atomic<uint32_t> count_ = 0;

  const uintptr_t begin_, end_;
  UniqueFunction on_end_;
  std::atomic<bool> settled_ = false, ended_ = false;
};

/// Ends the watches of what a task writes, and calls back for them when the scope ends.
class NotedWrites {
 public:
  NotedWrites() = default;
  NotedWrites(const NotedWrites&) = delete;
  ~NotedWrites() {
    if (!ended_.empty()) ContentWatch::call_back(ended_);
  }

  /// With the lock of the stream, which takes the task before it gives the lock back.
  void note(const Writes& writes) {
    if (ContentWatch::count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      ended_ = ContentWatch::end_of(writes);
  }

 private:
  ContentWatch::Ended ended_;
};

}  // namespace anynpu
