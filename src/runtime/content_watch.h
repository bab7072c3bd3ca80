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
/// A task counts from when it is enqueued: every stream notes what its tasks write, after it took them. So
/// what was enqueued when the watch began may still write; once that is done the watch is settled. What a
/// task reads that is enqueued while the watch is settled and has not ended is what every later one reads,
/// until it ends: no order of streams or threads matters. Thread-safe.
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

  /// A task that writes that was enqueued.
  static void note(const Writes& writes) {
    if (count_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      end_of(writes);
  }
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
  static void end_of(const Writes& writes);
  static void end_at(const void* address);
  static void end_freed(const void* address);
  static void exclude(const void* address, size_t size, bool until_freed);
  static void end_all(std::vector<std::shared_ptr<ContentWatch>> watches);

  /// How many watches there are, and blocks that are excluded. A thread that enqueues a task after a watch
  /// looked at the stream (see begin()) finds it counted, as both hold the stream's mutex in between.
  static inline std::atomic<uint32_t> count_ = 0;

  const uintptr_t begin_, end_;
  UniqueFunction on_end_;
  std::atomic<bool> settled_ = false, ended_ = false;
};

/// Notes what a task writes when the scope that enqueues it ends, however it does.
class NotedWrites {
 public:
  explicit NotedWrites(const Writes& writes) : writes_(writes) {}
  ~NotedWrites() { ContentWatch::note(writes_); }
  NotedWrites(const NotedWrites&) = delete;

 private:
  const Writes& writes_;
};

}  // namespace anynpu
