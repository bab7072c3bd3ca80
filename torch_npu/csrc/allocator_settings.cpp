#include "torch_npu/csrc/allocator_settings.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "base/options.h"
#include "runtime/block_pool.h"

namespace torch_npu {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::ConfigTokenizer;

const anynpu::Option kAllocConf(
    "PYTORCH_NPU_ALLOC_CONF", "",
    "settings of the caching allocator as key:value,…: max_split_size_mb, max_non_split_rounding_mb, "
    "large_segment_size_mb, garbage_collection_threshold, roundup_power2_divisions, and pinned_… for pinned "
    "memory; default: PYTORCH_ALLOC_CONF");

/// Keys that programs for Ascend use and that have no effect here.
constexpr struct {
  const char *key, *why;
} kWithoutEffect[] = {
    {"base_addr_aligned_kb", "segments are aligned to pages, and blocks to 512 bytes"},
    {"expandable_segments", "each segment is one range of pages, which are committed as a whole"},
    {"multi_stream_lazy_reclaim", "blocks that other streams used are looked at in every allocation"},
    {"page_size", "the system's pages are used, huge ones where it has them"},
    {"pinned_mem_register", "pinned memory needs no registration"},
    {"segment_size_mb", "it is the size of expandable segments"},
};

/// As a set: PyTorch's parser leaves these keys to this device.
std::unordered_set<std::string> keys_of_npu() {
  std::unordered_set<std::string> keys;
  for (const auto& row : kWithoutEffect)
    if (!AcceleratorAllocatorConfig::getKeys().contains(row.key)) keys.insert(row.key);
  return keys;
}

void warn_without_effect(const std::string& settings) {
  const ConfigTokenizer tokens(settings);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& key = tokens[i];
    i = tokens.skipKey(i) + 1;  // at the comma
    for (const auto& row : kWithoutEffect)
      if (key == row.key && tokens[i - 1] != "False")
        TORCH_WARN("allocator setting ", key, " has no effect on device npu: ", row.why);
  }
}

/// Changes the settings of all pools by `change`.
template <class F>
void update_pools(F change) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  anynpu::PoolSettings settings = anynpu::BlockPool::settings();
  change(settings);
  anynpu::BlockPool::configure(std::move(settings));
}

void adopt_settings() {
  using Config = AcceleratorAllocatorConfig;
  update_pools([](anynpu::PoolSettings& settings) {
    settings.max_split_size = Config::max_split_size();
    settings.max_non_split_rounding = Config::max_non_split_rounding_size();
    settings.large_segment_size = Config::large_segment_size();
    settings.garbage_collection_threshold = Config::garbage_collection_threshold();
    settings.roundup_power2_divisions = Config::roundup_power2_divisions();
  });
}

std::string accepted_keys() {
  const auto& keys = AcceleratorAllocatorConfig::getKeys();
  std::string list;
  for (const std::string& key : std::set<std::string>(keys.begin(), keys.end()))
    list += (list.empty() ? "" : ", ") + key;
  return list;
}

/// Raises kInvalidArgument for what PyTorch's parser found in `variable`.
[[noreturn]] void refuse(const char* variable, const std::string& text, const std::string& why) {
  anynpu::raise(anynpu::ErrorCode::kInvalidArgument, variable, " is '", text, "', which cannot be read (",
                why, "); key:value,… is accepted, with the keys ", accepted_keys());
}

/// The variable that PyTorch reads settings from at first: the newest of its names that is set.
const char* variable_of_all_devices() {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"})
    if (c10::utils::has_env(name)) return name;
  return "PYTORCH_ALLOC_CONF";
}

/// Runs `parse`, which reads the settings in `variable`.
template <class F>
void read_settings(const char* variable, const std::string& text, F parse) {
  constexpr const char* kNoValue = "a value is missing or is not a number";
  try {
    parse();
  } catch (const c10::ValueError& error) {
    refuse(variable, text, error.msg());
  } catch (const c10::Error&) {  // an assertion of the parser's, at the end of the text
    refuse(variable, text, kNoValue);
  } catch (const std::logic_error&) {  // std::stoull's and std::stod's
    refuse(variable, text, kNoValue);
  }
}

}  // namespace

void load_allocator_settings() {
  AcceleratorAllocatorConfig::registerDeviceConfigParserHook(
      [](const std::string& settings) {
        warn_without_effect(settings);
        adopt_settings();
      },
      keys_of_npu());
  const char* of_all_devices = variable_of_all_devices();
  read_settings(of_all_devices, c10::utils::get_env(of_all_devices).value_or(""), adopt_settings);
  if (const std::string text = kAllocConf.text(); !text.empty())
    read_settings(kAllocConf.name(), text, [&] { c10::CachingAllocator::setAllocatorSettings(text); });
}

void enable_caching(bool enabled) {
  update_pools([&](anynpu::PoolSettings& settings) { settings.caching = enabled; });
}

}  // namespace torch_npu
