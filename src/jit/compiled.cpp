#include "jit/compiled.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "jit/runtime.h"
#include "tile/bounds.h"
#include "tile/lane.h"

namespace anynpu::jit {
namespace {

using tile::Arguments;
using tile::DType;
using tile::Kernel;

/// Memory that holds code, which may be run and no longer be changed.
class ExecutableMemory {
 public:
  explicit ExecutableMemory(const Code& code) : size_(code.bytes.size()) {
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(memory_ != MAP_FAILED, ErrorCode::kOutOfMemory, "jit: no memory for ", size_,
            " bytes of code: ", std::strerror(errno));
    std::memcpy(memory_, code.bytes.data(), size_);
    auto* place = static_cast<std::byte*>(memory_);
    for (const std::string& name : code.functions) {
      void* const function = runtime_function(name);
      if (function == nullptr) unmap();
      require(function != nullptr, ErrorCode::kInternal, "jit: code calls '", name,
              "', which is not among the functions that it may");
      const auto address = reinterpret_cast<uintptr_t>(function);
      std::memcpy(std::exchange(place, place + sizeof(address)), &address, sizeof(address));
    }
    if (mprotect(memory_, size_, PROT_READ | PROT_EXEC) != 0) {
      const int error = errno;
      unmap();
      raise(ErrorCode::kInternal, "jit: memory cannot be made executable: ", std::strerror(error));
    }
  }
  ExecutableMemory(const ExecutableMemory&) = delete;
  ~ExecutableMemory() { unmap(); }

  KernelFunction at(uint64_t offset) const {
    return reinterpret_cast<KernelFunction>(static_cast<std::byte*>(memory_) + offset);
  }

 private:
  void unmap() { munmap(memory_, size_); }

  void* memory_;
  const size_t size_;
};

class CompiledKernel final : public Compiled {
 public:
  CompiledKernel(Kernel kernel, const Code& code)
      : kernel_(std::move(kernel)), bounds_(kernel_), memory_(code), function_(memory_.at(code.entry)) {
    words_ = kernel_.sizes.size() + kernel_.scalars.size();
    for (const tile::Buffer& buffer : kernel_.buffers) words_ += 1 + buffer.strides.size();
    for (const Scratch& region : code.scratch)
      scratch_.push_back({region.dtype, bounds_.add(region.rows), bounds_.add(region.cols)});
  }

  const Kernel& kernel() const override { return kernel_; }

  size_t add_scratch(PackedArguments& arguments) const override {
    require(arguments.count() == words_, ErrorCode::kInternal, "kernel @", kernel_.name, " takes ", words_,
            " words of arguments, not ", arguments.count());
    if (scratch_.empty()) return 0;
    std::array<tile::Interval, 64> few;
    std::vector<tile::Interval> many(bounds_.count() > few.size() ? bounds_.count() : 0);
    const std::span intervals = many.empty() ? std::span(few).first(bounds_.count()) : std::span(many);
    bounds_.evaluate({arguments.words(), kernel_.sizes.size()}, intervals);
    size_t total = 0;
    for (const Region& region : scratch_) {
      arguments.add(static_cast<int64_t>(total));
      total += bytes_of(region, intervals);
    }
    return total;
  }

  void call(const PackedArguments& arguments, std::byte* scratch, int64_t first, int64_t last,
            tile::Fault& fault) const noexcept override {
    function_(arguments.words(), scratch, first, last, &fault);
  }

 private:
  /// Scratch memory whose extents are among the bounds.
  struct Region {
    DType dtype;
    size_t rows, cols;
  };

  size_t bytes_of(const Region& region, std::span<const tile::Interval> intervals) const {
    constexpr int64_t kMost = int64_t{1} << 46;
    const int64_t rows = std::max<int64_t>(intervals[region.rows].greatest, 0),
                  cols = std::max<int64_t>(intervals[region.cols].greatest, 0);
    require(rows < kMost && cols < kMost && (rows == 0 || cols < kMost / rows), ErrorCode::kInvalidArgument,
            "kernel @", kernel_.name, ": a tile of ", rows, " x ", cols, " does not fit memory");
    const auto elements = static_cast<size_t>(rows * ((cols + kPadding - 1) / kPadding * kPadding));
    const size_t bytes = elements * size_of(region.dtype);
    return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }

  const Kernel kernel_;
  tile::Bounds bounds_;
  std::vector<Region> scratch_;
  const ExecutableMemory memory_;
  const KernelFunction function_;
  size_t words_;  ///< of arguments, without scratch
};

PackedArguments packed(const Kernel& kernel, const Arguments& arguments) {
  PackedArguments words;
  for (const int64_t size : arguments.sizes) words.size(size);
  for (const auto& buffer : arguments.buffers) words.buffer(buffer.data, buffer.strides);
  for (size_t i = 0; i < kernel.scalars.size(); ++i)
    words.scalar(kernel.type(kernel.scalars[i]).dtype, arguments.scalars[i]);
  return words;
}

}  // namespace

void PackedArguments::scalar(DType dtype, const tile::Literal& value) {
  int64_t bits = 0;
  tile::visit(dtype, [&]<class T>(std::type_identity<T>) {
    const T element = std::visit([](auto number) { return tile::convert<T>(number); }, value);
    std::memcpy(&bits, &element, sizeof(T));
  });
  add(bits);
}

int64_t Compiled::blocks(const PackedArguments& arguments) const {
  return tile::blocks_of(kernel(), std::span(arguments.words(), kernel().sizes.size()));
}

void Compiled::run(const Arguments& arguments, int64_t first, int64_t last) const {
  tile::check_arguments(kernel(), arguments);
  PackedArguments words = packed(kernel(), arguments);
  const size_t bytes = add_scratch(words);
  const auto free = [](void* memory) { std::free(memory); };
  const std::unique_ptr<void, decltype(free)> scratch(
      bytes == 0 ? nullptr : std::aligned_alloc(kScratchAlignment, bytes), free);
  require(bytes == 0 || scratch != nullptr, ErrorCode::kOutOfMemory, "kernel @", kernel().name, ": no ",
          bytes, " bytes of scratch memory");
  tile::Fault fault;
  call(words, static_cast<std::byte*>(scratch.get()), first, last, fault);
  if (fault.buffer >= 0) tile::raise_fault(kernel(), arguments, fault);
}

void Compiled::run(const Arguments& arguments) const {
  tile::check_arguments(kernel(), arguments);
  run(arguments, 0, tile::blocks_of(kernel(), arguments.sizes));
}

std::shared_ptr<const Compiled> loaded(Kernel kernel, const Code& code) {
  return std::make_shared<CompiledKernel>(std::move(kernel), code);
}

}  // namespace anynpu::jit
