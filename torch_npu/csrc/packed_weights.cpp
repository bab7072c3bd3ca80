#include "torch_npu/csrc/packed_weights.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/options.h"
#include "ops/cube/gemm.h"
#include "runtime/content_watch.h"
#include "runtime/device.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/dtypes.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/kernel_call.h"
#include "torch_npu/csrc/native_op.h"

namespace torch_npu {
namespace {

using anynpu::Block;
using anynpu::BlockPool;
using anynpu::ContentWatch;
using anynpu::MemoryBudget;
using anynpu::ops::View;

const anynpu::Option limit_option(
    "ANYNPU_PACKED_WEIGHTS", "",
    "How many bytes copies of weights may take, on all devices, that are packed for products of matrices; 0: "
    "there are none. Unset: a quarter of ANYNPU_MEMORY.");

constexpr size_t kMostForms = 4;     ///< of one block: the weight and its transpose, or parts of it
constexpr int kMostDoublings = 6;    ///< of how many calls a block that is written again and again waits
constexpr uint64_t kWorthwhile = 4;  ///< uses of a pack that paid for it
constexpr size_t kWaitingBlocks = 256;

int64_t limit() {
  static const int64_t bytes = limit_option.text().empty()
                                   ? static_cast<int64_t>(MemoryBudget::instance().total() / 4)
                                   : limit_option.integer();
  return bytes;
}

/// A matrix in a block that products read, and its packed form, once there is one.
struct Form {
  View right;
  std::shared_ptr<PackedWeight> packed;
};

struct Weight {
  uint64_t number;  ///< of the watch: blocks come again
  std::shared_ptr<ContentWatch> watch;
  std::vector<Form> forms = {};
  uint64_t uses = 0;

  Form* find(const View& right) {
    const auto found =
        std::find_if(forms.begin(), forms.end(), [&](const Form& form) { return form.right.same_as(right); });
    return found == forms.end() ? nullptr : &*found;
  }
};

/// Blocks whose watches ended without use, which are not watched again at once: the operands of training.
class Waiting {
 public:
  /// Whether the block may be watched; counts the call else.
  bool is_over(const Block* block) {
    Entry& entry = entry_of(block);
    if (entry.block != block || entry.calls == 0) return true;
    return --entry.calls == 0;
  }
  void add(const Block* block) {
    Entry& entry = entry_of(block);
    if (entry.block != block) entry = {block};
    entry.doublings = std::min(entry.doublings + 1, kMostDoublings);
    entry.calls = 1 << entry.doublings;
  }
  void remove(const Block* block) {
    if (Entry& entry = entry_of(block); entry.block == block) entry = {};
  }

 private:
  struct Entry {
    const Block* block = nullptr;
    int doublings = 0, calls = 0;
  };
  Entry& entry_of(const Block* block) {
    return entries_[std::hash<const Block*>()(block) / 64 % kWaitingBlocks];
  }

  std::array<Entry, kWaitingBlocks> entries_;
};

/// While one lives, what this thread allocates is a pack, for which none has to go.
struct Packing {
  Packing() { now = true; }
  ~Packing() { now = false; }
  Packing(const Packing&) = delete;
  static inline thread_local bool now = false;
};

/// All that is known of weights. Blocks are allocated and freed without its lock, as that may take the GIL.
class PackedWeights {
 public:
  static PackedWeights& instance() {
    static auto* made = [] {
      BlockPool::set_relief([] { return !Packing::now && drop_packed_weights(); });
      return new PackedWeights;  // outlives every thread
    }();
    return *made;
  }

  std::shared_ptr<const PackedWeight> find(const Block* block, const View& right, anynpu::Stream& stream) {
    uint64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto known = weights_.find(block);
      if (known == weights_.end()) {
        if (!waiting_.is_over(block)) return nullptr;
      } else {
        Weight& weight = known->second;
        Form* const form = weight.find(right);
        if (form == nullptr) {
          if (weight.forms.size() < kMostForms) weight.forms.push_back({right, nullptr});
          return nullptr;
        }
        if (weight.watch->has_ended()) return nullptr;  // who ended it is about to say so
        if (form->packed != nullptr) return use(weight, form->packed, stream);
        if (!weight.watch->is_settled()) return nullptr;
        number = weight.number;
      }
    }
    if (number != 0) return make(block, number, right, stream);
    watch(block, right);
    return nullptr;
  }

  bool drop_all() {
    std::unordered_map<const Block*, Weight> dropped;
    {
      const std::lock_guard lock(mutex_);
      dropped.swap(weights_);
    }
    const bool any = bytes_.load() != 0;
    // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): any order does
    for (const auto& [block, weight] : dropped) weight.watch->stop();
    return any;
  }

  PackedWeightStats stats() const { return {made_.load(), uses_.load(), bytes_.load()}; }
  void reset_stats() { made_ = uses_ = 0; }

 private:
  /// With the lock held.
  std::shared_ptr<const PackedWeight> use(Weight& weight, const std::shared_ptr<PackedWeight>& packed,
                                          anynpu::Stream& stream) {
    // One that is not made may never be: its task may be dropped, or fail.
    if (!packed->is_made->load(std::memory_order_acquire)) return nullptr;
    if (stream.id() != packed->stream)
      BlockPool::pool_of(block_of(packed->memory))
          .record_stream(block_of(packed->memory), stream.shared_from_this());
    ++weight.uses;
    uses_.fetch_add(1, std::memory_order_relaxed);
    return packed;
  }

  void watch(const Block* block, const View& right) {
    const uint64_t number = next_number_.fetch_add(1, std::memory_order_relaxed);
    auto watch = ContentWatch::begin(block, [this, block, number] { forget(block, number); });
    const std::lock_guard lock(mutex_);
    if (watch == nullptr || watch->has_ended())
      waiting_.add(block);
    else
      weights_.insert_or_assign(block, Weight{number, std::move(watch), {{right, nullptr}}});
  }

  /// The end of that watch.
  void forget(const Block* block, uint64_t number) {
    std::vector<Form> forms;  // freed without the lock
    const std::lock_guard lock(mutex_);
    const auto found = weights_.find(block);
    if (found == weights_.end() || found->second.number != number) return;
    if (found->second.uses < kWorthwhile)
      waiting_.add(block);
    else
      waiting_.remove(block);
    forms.swap(found->second.forms);
    weights_.erase(found);
  }

  std::shared_ptr<const PackedWeight> make(const Block* block, uint64_t number, const View& right,
                                           anynpu::Stream& stream) {
    View view = anynpu::ops::packed_right(right, nullptr);
    const int64_t bytes = view.span();
    const MemoryBudget& budget = MemoryBudget::instance();
    if (static_cast<int64_t>(budget.total() - budget.committed()) < bytes) return nullptr;
    const bool fits = bytes_.fetch_add(bytes) + bytes <= limit();
    const std::shared_ptr<void> counted(nullptr, [this, bytes](void*) { bytes_.fetch_sub(bytes); });
    if (!fits) return nullptr;
    auto memory = allocate(bytes, stream);
    if (!memory) return nullptr;
    view.data = memory->get();
    const std::shared_ptr<PackedWeight> packed(
        new PackedWeight{std::move(view), std::move(*memory), stream.id()},
        [counted](PackedWeight* gone) { delete gone; });
    launch_kernel(stream, npu_call([&] { return pack_right(right, packed->view); }), packed->is_made);
    made_.fetch_add(1, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    const auto found = weights_.find(block);
    if (found != weights_.end() && found->second.number == number)
      if (Form* const form = found->second.find(right); form != nullptr && form->packed == nullptr)
        form->packed = packed;
    return packed;
  }

  /// Nothing where there is no memory for it.
  static std::optional<c10::DataPtr> allocate(int64_t bytes, const anynpu::Stream& stream) {
    const Packing packing;
    const auto device = static_cast<c10::DeviceIndex>(stream.device());
    AllocationContext context = allocation_context(device);
    context.group = 0;  // the pack outlives the scope that chose a group
    try {
      return own_block(allocate_block(device, static_cast<size_t>(bytes), stream.id(), context), device);
    } catch (const c10::OutOfMemoryError&) {
      return std::nullopt;
    }
  }

  std::mutex mutex_;
  std::unordered_map<const Block*, Weight> weights_;
  Waiting waiting_;
  std::atomic<uint64_t> next_number_ = 1, made_ = 0, uses_ = 0;
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace

std::shared_ptr<const PackedWeight> packed_weight(const at::Tensor& right, int64_t rows,
                                                  anynpu::Stream& stream) {
  return npu_call([&]() -> std::shared_ptr<const PackedWeight> {
    const c10::DataPtr& data = right.storage().data_ptr();
    if (!owns_block(data) || data.get_context() == nullptr || limit() == 0) return nullptr;
    const auto dtype = *dtype_of(right.scalar_type());
    if (!anynpu::ops::profits_from_packing(dtype, rows, right.size(1), right.size(0))) return nullptr;
    View view = view_of(right);
    view.sizes.insert(view.sizes.begin(), 1);
    view.strides.insert(view.strides.begin(), 0);
    return PackedWeights::instance().find(static_cast<const Block*>(data.get_context()), view, stream);
  });
}

bool drop_packed_weights() { return PackedWeights::instance().drop_all(); }

PackedWeightStats packed_weight_stats() { return PackedWeights::instance().stats(); }
void reset_packed_weight_stats() { PackedWeights::instance().reset_stats(); }

}  // namespace torch_npu
