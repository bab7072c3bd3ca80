#include "ops/launch.h"

#include <algorithm>
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
  const tile::Kernel& kernel = code_->kernel();
  const auto& sizes = kernel.buffer(fault.buffer).sizes;
  const int64_t size = sizes[static_cast<size_t>(fault.dimension)].evaluate(
      [&](const tile::Index& leaf) { return arguments_.words()[leaf.value()]; });
  const std::string accepted = size == 0 ? "none is" : concat("0 to ", size - 1, " are");
  raise(ErrorCode::kInvalidArgument, kernel.name, ": index ", fault.position,
        " is out of range of a dimension of size ", size, "; ", accepted, " accepted");
}

void Launch::run(int64_t first, int64_t last) const {
  tile::Fault fault;
  if (scratch_ == 0) {
    code_->call(arguments_, nullptr, first, last, fault);
  } else {
    code_->call(arguments_, Scratch(scratch_).get(), first, last, fault);
  }
  if (fault.buffer >= 0) raise_fault(fault);
}

void Launch::run(int threads) const {
  if (threads == 1) return run(0, blocks_);
  const ThreadLimit limit(threads);
  std::atomic<bool> failed = false;
  std::exception_ptr error;
  parallel_ranges(static_cast<size_t>(blocks_), 1, [&](size_t first, size_t last) {
    try {
      run(static_cast<int64_t>(first), static_cast<int64_t>(last));
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

void enqueue(Stream& stream, Launch launch, int threads) {
  const Lane lane = lane_for(launch.bytes());
  stream.launch(lane, [launch = std::move(launch), threads = lane == Lane::kShort ? 1 : threads] {
    launch.run(threads);
  });
}

}  // namespace anynpu::ops
