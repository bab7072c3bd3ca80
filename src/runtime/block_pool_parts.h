#pragma once

#include <memory>
#include <vector>

#include "runtime/block_pool.h"
#include "runtime/stream.h"

namespace anynpu {

// What a pool is made of; for the sources of BlockPool alone.

struct BlockPool::Segment {
  BlockPool* pool;
  uint64_t stream, group;
  MemoryKind kind;
  Bins& bins;  ///< of that stream, group and kind
  size_t size;
  bool oversize;
  bool in_task;  ///< for allocations of tasks of the stream
  Block* first = nullptr;
  uint64_t unused_since = 0;  ///< the pool's unused_count_ when its last block was freed
};

struct Block {
  BlockPool::Segment* segment;
  char* address;
  size_t size, requested = 0;
  enum State : uint8_t { kFree, kAllocated, kDeferred } state = kDeferred;  // free blocks stand in a bin
  bool oversize = false;                                                    // counts as such while allocated
  Block *previous = nullptr, *next = nullptr;                               // neighbours in the segment
  Block *bin_previous = nullptr, *bin_next = nullptr;       // in the free list of the size class
  std::vector<std::shared_ptr<Stream>> other_streams = {};  // that use it beside the segment's own
  std::vector<std::shared_ptr<Recording>> ends = {};        // that it rests until, once it is freed
  PoolNote note = nullptr;

  bool is_whole_segment() const { return previous == nullptr && next == nullptr; }
};

}  // namespace anynpu
