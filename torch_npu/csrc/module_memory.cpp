#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <atomic>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/device.h"
#include "torch_npu/csrc/allocator.h"
#include "torch_npu/csrc/allocator_settings.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/memory_history.h"
#include "torch_npu/csrc/module.h"
#include "torch_npu/csrc/pinned.h"

namespace torch_npu {
namespace {

namespace py = pybind11;
using anynpu::BlockPool;
using anynpu::PoolEvent;
using c10::DeviceIndex;

constexpr const char* kActions[] = {"alloc",         "free_requested", "free_completed",
                                    "segment_alloc", "segment_free",   "oom"};

PoolEvent::Action action_named(const std::string& name) {
  for (size_t i = 0; i < std::size(kActions); ++i)
    if (name == kActions[i]) return static_cast<PoolEvent::Action>(i);
  TORCH_CHECK_VALUE(false, "skip_actions: '", name,
                    "' is none of alloc, free_requested, free_completed, segment_alloc, segment_free, oom");
}

/// Stacks as Python shows them. They are resolved together, when all are known.
class Stacks {
 public:
  /// `owner["frames"]` becomes the list of the stack's frames, empty where there is none.
  void add(const py::dict& owner, const Traceback& stack) {
    owner["frames"] = py::list();
    if (stack == nullptr) return;
    stacks_.push_back(stack);
    owners_.push_back(owner);
  }

  void resolve() {
    std::vector<torch::CapturedTraceback*> unique;
    std::unordered_map<torch::CapturedTraceback*, size_t> position;
    for (const Traceback& stack : stacks_)
      if (position.emplace(stack.get(), unique.size()).second) unique.push_back(stack.get());
    const torch::SymbolizedTracebacks symbols = torch::symbolize(unique);
    std::vector<py::dict> frames;
    for (const torch::unwind::Frame& frame : symbols.all_frames)
      frames.push_back(py::dict(py::arg("name") = frame.funcname, py::arg("filename") = frame.filename,
                                py::arg("line") = frame.lineno));
    std::vector<py::list> lists;
    for (const auto& stack : symbols.tracebacks) {
      py::list& list = lists.emplace_back();
      for (const uint64_t frame : stack) list.append(frames[frame]);
    }
    for (size_t i = 0; i < stacks_.size(); ++i) owners_[i]["frames"] = lists[position[stacks_[i].get()]];
  }

 private:
  std::vector<Traceback> stacks_;
  std::vector<py::dict> owners_;
};

py::tuple pool_id(uint64_t group) { return py::make_tuple(0, group); }

const char* state_name(BlockPool::PieceState state) {
  switch (state) {
    case BlockPool::PieceState::kAllocated:
      return "active_allocated";
    case BlockPool::PieceState::kAwaitingFree:
      return "active_pending_free";
    default:
      return "inactive";
  }
}

py::dict block_dict(const BlockPool::Piece& piece, Stacks& stacks) {
  py::dict block(py::arg("address") = reinterpret_cast<uintptr_t>(piece.address),
                 py::arg("size") = piece.size, py::arg("requested_size") = piece.requested,
                 py::arg("state") = state_name(piece.state));
  stacks.add(block, traceback(piece.note));
  return block;
}

py::dict segment_dict(DeviceIndex device, const BlockPool::SegmentInfo& info, Stacks& stacks) {
  py::list blocks;
  for (const BlockPool::Piece& piece : info.pieces) blocks.append(block_dict(piece, stacks));
  py::dict segment(py::arg("device") = static_cast<int>(device),
                   py::arg("address") = reinterpret_cast<uintptr_t>(info.address),
                   py::arg("total_size") = info.size, py::arg("allocated_size") = info.allocated,
                   py::arg("active_size") = info.active, py::arg("requested_size") = info.requested,
                   py::arg("stream") = info.stream,
                   py::arg("segment_type") = info.kind == anynpu::kSmallBlocks ? "small" : "large",
                   py::arg("segment_pool_id") = pool_id(info.group), py::arg("is_expandable") = false,
                   py::arg("blocks") = blocks);
  stacks.add(segment, nullptr);
  return segment;
}

/// The segments of all devices; of one group, where it is given.
py::list segments(std::optional<uint64_t> group, Stacks& stacks) {
  py::list result;
  for (DeviceIndex device = 0; device < device_count(); ++device) {
    if (!is_started(device)) continue;
    for (const auto& info : anynpu::Device::get(device).pool().snapshot())
      if (!group.has_value() || info.group == *group) result.append(segment_dict(device, info, stacks));
  }
  return result;
}

py::dict event_dict(const HistoryEvent& event, Stacks& stacks) {
  const bool oom = event.action == PoolEvent::kOom;
  py::dict entry(py::arg("action") = kActions[event.action], py::arg("size") = event.size,
                 py::arg("stream") = event.stream, py::arg("time_us") = event.microseconds,
                 py::arg("pool_id") = pool_id(event.group), py::arg("segment_pool_id") = pool_id(event.group),
                 py::arg("compile_context") = "", py::arg("user_metadata") = event.metadata);
  entry[oom ? "device_free" : "addr"] = event.address;
  stacks.add(entry, event.stack);
  return entry;
}

py::list memory_snapshot(std::optional<uint64_t> group) {
  Stacks stacks;
  py::list result = segments(group, stacks);
  stacks.resolve();
  return result;
}

py::dict allocator_settings() {
  const anynpu::PoolSettings& settings = BlockPool::settings();
  py::dict divisions;
  for (size_t i = 0; i < settings.roundup_power2_divisions.size(); ++i)
    divisions[py::str(std::to_string(size_t{1} << i))] = settings.roundup_power2_divisions[i];
  return py::dict(py::arg("PYTORCH_NPU_ALLOC_CONF") = c10::CachingAllocator::getAllocatorSettings(),
                  py::arg("max_split_size") = static_cast<int64_t>(settings.max_split_size),
                  py::arg("garbage_collection_threshold") = settings.garbage_collection_threshold,
                  py::arg("large_segment_size") = settings.large_segment_size,
                  py::arg("expandable_segments") = false, py::arg("roundup_power2_divisions") = divisions);
}

/// What torch.cuda.memory._snapshot() holds.
py::dict snapshot() {
  Stacks stacks;
  py::list traces;
  for (const auto& events : history()) {
    py::list trace;
    for (const HistoryEvent& event : events) trace.append(event_dict(event, stacks));
    traces.append(trace);
  }
  py::dict result(py::arg("segments") = segments(std::nullopt, stacks), py::arg("device_traces") = traces,
                  py::arg("allocator_settings") = allocator_settings(),
                  py::arg("external_annotations") = py::list());
  stacks.resolve();
  return result;
}

HistoryOptions::Stacks stacks_named(const std::string& context) {
  if (context == "state") return HistoryOptions::Stacks::kLiveBlocks;
  if (context == "alloc") return HistoryOptions::Stacks::kAllocations;
  TORCH_CHECK_VALUE(context == "all", "context is '", context,
                    "'; 'state', 'alloc', 'all' and None are accepted");
  return HistoryOptions::Stacks::kFrees;
}

void record_memory_history(const std::optional<std::string>& enabled,
                           const std::optional<std::string>& context, const std::string& stacks,
                           size_t max_entries, bool clear_history,
                           const std::vector<std::string>& skip_actions) {
  if (!enabled.has_value()) return stop_history();
  TORCH_CHECK_VALUE(*enabled == "state" || *enabled == "all", "enabled is '", *enabled,
                    "'; 'state', 'all' and None are accepted");
  TORCH_CHECK_VALUE(stacks == "python" || stacks == "all", "stacks is '", stacks,
                    "'; 'python' and 'all' are accepted");
  HistoryOptions options;
  options.stacks = context.has_value() ? stacks_named(*context) : HistoryOptions::Stacks::kNone;
  options.cpp_frames = stacks == "all";
  options.events = *enabled == "all";
  options.most_events = max_entries;
  options.forget = clear_history;
  for (const std::string& name : skip_actions) options.skipped.insert(action_named(name));
  record_history(std::move(options));
}

py::dict stat_dict(const c10::CachingAllocator::Stat& stat) {
  return py::dict(py::arg("current") = stat.current, py::arg("peak") = stat.peak,
                  py::arg("allocated") = stat.allocated, py::arg("freed") = stat.freed);
}

py::dict stat_dict(const c10::CachingAllocator::StatArray& stats) {
  return py::dict(py::arg("all") = stat_dict(stats[0]), py::arg("small_pool") = stat_dict(stats[1]),
                  py::arg("large_pool") = stat_dict(stats[2]));
}

py::dict stat_dict(const c10::CachingAllocator::DurationStat& stat) {
  return py::dict(py::arg("total") = stat.total, py::arg("max") = stat.max, py::arg("min") = stat.min,
                  py::arg("count") = stat.count,
                  py::arg("avg") = stat.count == 0 ? 0.0 : static_cast<double>(stat.total) / stat.count);
}

/// Under the names of torch.cuda.memory_stats_as_nested_dict.
py::dict memory_stats(int device) {
  const auto stats = npu_allocator()->getDeviceStats(static_cast<DeviceIndex>(device));
  py::dict by_pool;
  for (const auto& [id, reserved] : stats.reserved_bytes_by_private_pools)
    by_pool[py::make_tuple(id.first, id.second)] = stat_dict(reserved);
  return py::dict(py::arg("num_alloc_retries") = stats.num_alloc_retries,
                  py::arg("num_ooms") = stats.num_ooms, py::arg("max_split_size") = stats.max_split_size,
                  py::arg("num_sync_all_streams") = stats.num_sync_all_streams,
                  py::arg("num_device_alloc") = stats.num_device_alloc,
                  py::arg("num_device_free") = stats.num_device_free,
                  py::arg("num_oom_rejections") = stats.num_oom_rejections,
                  py::arg("allocation") = stat_dict(stats.allocation),
                  py::arg("segment") = stat_dict(stats.segment), py::arg("active") = stat_dict(stats.active),
                  py::arg("inactive_split") = stat_dict(stats.inactive_split),
                  py::arg("allocated_bytes") = stat_dict(stats.allocated_bytes),
                  py::arg("reserved_bytes") = stat_dict(stats.reserved_bytes),
                  py::arg("active_bytes") = stat_dict(stats.active_bytes),
                  py::arg("inactive_split_bytes") = stat_dict(stats.inactive_split_bytes),
                  py::arg("requested_bytes") = stat_dict(stats.requested_bytes),
                  py::arg("oversize_allocations") = stat_dict(stats.oversize_allocations),
                  py::arg("oversize_segments") = stat_dict(stats.oversize_segments),
                  py::arg("reserved_bytes_by_private_pools") = by_pool);
}

/// Under the names of torch.cuda.host_memory_stats_as_nested_dict.
py::dict host_memory_stats() {
  const at::HostStats stats = pinned_allocator()->get_stats();
  return py::dict(py::arg("num_host_alloc") = stats.num_host_alloc,
                  py::arg("num_host_free") = stats.num_host_free,
                  py::arg("allocations") = stat_dict(stats.allocations),
                  py::arg("allocated_bytes") = stat_dict(stats.allocated_bytes),
                  py::arg("active_requests") = stat_dict(stats.active_requests),
                  py::arg("active_bytes") = stat_dict(stats.active_bytes),
                  py::arg("host_alloc_time") = stat_dict(stats.host_alloc_time),
                  py::arg("host_free_time") = stat_dict(stats.host_free_time));
}

uintptr_t allocate_raw(size_t size, int device, int64_t stream_id) {
  const auto index = static_cast<DeviceIndex>(device);
  const c10::Stream stream(c10::Stream::UNSAFE, {c10::DeviceType::PrivateUse1, index}, stream_id);
  anynpu::Block* block = allocate_block(index, size, runtime_stream(stream)->id(), allocation_context(index));
  return reinterpret_cast<uintptr_t>(BlockPool::address(block));
}

void free_raw(uintptr_t address) {
  if (address == 0) return;
  auto* const pointer = reinterpret_cast<void*>(address);
  const anynpu::Device* device = anynpu::Device::of(pointer);
  anynpu::Block* block =
      device == nullptr ? nullptr : anynpu::Device::get(device->index()).pool().find(pointer);
  TORCH_CHECK(block != nullptr, "caching_allocator_delete: ", pointer,
              " is not the start of a live allocation of device npu");
  free_block(block);
}

void drop_group(uint64_t group) {
  for (DeviceIndex device = 0; device < device_count(); ++device)
    if (is_started(device)) anynpu::Device::get(device).pool().drop_group(group);
}

}  // namespace

void bind_memory(py::module& m) {
  using torch::wrap_pybind_function;
  m.def("memory_snapshot", wrap_pybind_function(memory_snapshot), py::arg("group") = py::none());
  m.def("snapshot", wrap_pybind_function(snapshot));
  m.def("record_memory_history", wrap_pybind_function(record_memory_history));
  m.def("set_memory_metadata", &set_history_metadata);
  m.def("memory_metadata", &history_metadata);
  m.def("memory_stats", wrap_pybind_function(memory_stats));
  m.def("host_memory_stats", wrap_pybind_function(host_memory_stats));
  m.def("reset_accumulated_host_memory_stats", [] { pinned_allocator()->reset_accumulated_stats(); });
  m.def("reset_peak_host_memory_stats", [] { pinned_allocator()->reset_peak_stats(); });
  m.def("set_memory_fraction", wrap_pybind_function([](double fraction, int device) {
          npu_call([&] { anynpu::Device::get(device).pool().set_fraction(fraction); });
        }));
  m.def("memory_fraction", wrap_pybind_function([](int device) {
          return is_started(static_cast<DeviceIndex>(device)) ? anynpu::Device::get(device).pool().fraction()
                                                              : 1.0;
        }));
  m.def("allocate", wrap_pybind_function(allocate_raw), "The address of a block for a stream, by its id.");
  m.def("free", wrap_pybind_function(free_raw));
  m.def("enable_caching", &enable_caching);
  m.def("new_group", [] {
    static std::atomic<uint64_t> next = 1;
    return next++;
  });
  m.def("drop_group", wrap_pybind_function(drop_group));
  m.def("exchange_group", wrap_pybind_function([](int device, uint64_t group) {
          return exchange_group(static_cast<DeviceIndex>(device), group);
        }),
        "Makes a group the one that the calling thread allocates in; gives the one before. 0 is none.");
}

}  // namespace torch_npu
