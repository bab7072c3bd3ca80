#include "ops/launch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>

#include "base/error.h"
#include "base/parallel.h"

namespace anynpu::ops {
namespace {

/// Scratch memory of the calling thread, which keeps it for its next kernels unless it is large.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    static thread_local Memory kept;
    if (bytes > kMostKept) {
      memory_ = &own_;
    } else {
      memory_ = &kept;
      bytes = std::max(bytes, kLeast);
    }
    if (memory_->size < bytes) memory_->grow(bytes);
  }
  std::byte* get() const { return memory_->bytes.get(); }

 private:
  static constexpr size_t kLeast = size_t{1} << 16, kMostKept = size_t{1} << 22, kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  struct Memory {
    std::unique_ptr<std::byte, Free> bytes;
    size_t size = 0;

    void grow(size_t to) {
      bytes.reset();
      bytes.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, to)));
      require(bytes != nullptr, ErrorCode::kOutOfMemory, "a kernel needs ", to,
              " bytes of scratch memory for each thread, and the system gives none");
      size = to;
    }
  };

  Memory own_;
  Memory* memory_;
};

}  // namespace

void Launch::raise_fault(const tile::Fault& fault) const {
  const tile::Kernel& kernel = code().kernel();
  const auto& sizes = kernel.buffer(fault.buffer).sizes;
  const int64_t size = sizes[static_cast<size_t>(fault.dimension)].evaluate(
      [&](const tile::Index& leaf) { return arguments_.words()[leaf.value()]; });
  const std::string accepted = size == 0 ? "none is" : concat("0 to ", size - 1, " are");
  raise(ErrorCode::kInvalidArgument, kernel.name, ": index ", fault.position,
        " is out of range of a dimension of size ", size, "; ", accepted, " accepted");
}

void Launch::join(Launch other) {
  require(&code() == &other.code(), ErrorCode::kInternal, "launches of two kernels cannot be joined");
  std::vector<Launch> more = std::move(other.joined_);
  bytes_ += other.bytes_;
  const auto add = [&](Launch&& launch) {
    launch.before_ = blocks_;
    blocks_ += launch.own_blocks_;
    joined_.push_back(std::move(launch));
  };
  add(std::move(other));
  for (Launch& launch : more) add(std::move(launch));
}

void Launch::run(int64_t first, int64_t last) const {
  if (first < own_blocks_) run_own(first, std::min(last, own_blocks_));
  auto part = std::upper_bound(joined_.begin(), joined_.end(), first,
                               [](int64_t block, const Launch& each) { return block < each.before_; });
  if (part != joined_.begin()) --part;
  for (; part != joined_.end() && part->before_ < last; ++part) {
    const int64_t from = std::max<int64_t>(first - part->before_, 0),
                  to = std::min(last - part->before_, part->own_blocks_);
    if (from < to) part->run_own(from, to);
  }
}

void Launch::run_own(int64_t first, int64_t last) const {
  tile::Fault fault;
  if (scratch_ == 0) {
    code().call(arguments_, nullptr, first, last, fault);
  } else {
    code().call(arguments_, Scratch(scratch_).get(), first, last, fault);
  }
  if (fault.buffer >= 0) raise_fault(fault);
}

void Launch::run(int threads) const {
  if (threads == 1) return run(0, blocks_);
  const ThreadLimit limit(threads);
  std::atomic<bool> failed = false;
  std::atomic<int64_t> next = 0;
  std::exception_ptr error;
  parallel_ranges(static_cast<size_t>(blocks_), 1, [&](size_t first, size_t last) {
    try {
      if (!takes_turns_) return run(static_cast<int64_t>(first), static_cast<int64_t>(last));
      for (int64_t block; (block = next++) < blocks_;) run(block, block + 1);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

std::vector<Launch> joined(std::vector<std::vector<Launch>> calls) {
  std::vector<Launch> all;
  bool more = true;
  for (size_t place = 0; more; ++place) {
    more = false;
    const size_t first = all.size();
    for (std::vector<Launch>& launches : calls) {
      if (place >= launches.size()) continue;
      more = true;
      Launch& launch = launches[place];
      const auto same = std::find_if(all.begin() + static_cast<std::ptrdiff_t>(first), all.end(),
                                     [&](const Launch& each) { return &each.code() == &launch.code(); });
      if (same == all.end()) {
        all.push_back(std::move(launch));
      } else {
        same->join(std::move(launch));
      }
    }
  }
  return all;
}

void enqueue(Stream& stream, Launch launch, int threads, std::shared_ptr<std::atomic<bool>> done) {
  const Lane lane = lane_for(launch.bytes());
  const std::vector<size_t>& words = launch.written();
  constexpr size_t kMost = 8;
  std::array<void*, kMost> addresses;
  const size_t count = std::min(words.size(), kMost);
  for (size_t i = 0; i < count; ++i)
    addresses[i] = reinterpret_cast<void*>(static_cast<uintptr_t>(launch.arguments().words()[words[i]]));
  const bool anything = !launch.joined().empty() || words.size() > kMost;
  const Writes writes = anything ? Writes::anything() : Writes({addresses.data(), count});
  if (lane == Lane::kShort) threads = 1;
  stream.launch(
      lane,
      [launch = std::move(launch), threads, done = std::move(done)] {
        launch.run(threads);
        if (done != nullptr) done->store(true, std::memory_order_release);
      },
      writes);
}

}  // namespace anynpu::ops
