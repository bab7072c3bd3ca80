#include "jit/cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/options.h"
#include "jit/build_id.h"
#include "jit/compiled.h"
#include "jit/loader.h"
#include "jit/product_block.h"
#include "tile/text.h"
#include "tile/verify.h"

namespace anynpu::jit {
namespace {

const Option cache_dir("ANYNPU_CACHE_DIR", "",
                       "folder in which compiled kernels are kept from one process to the next, readable by "
                       "its user only; off: none; default: $XDG_CACHE_HOME/anynpu or ~/.cache/anynpu");
const Option cache_bytes("ANYNPU_CACHE_BYTES", "256M",
                         "from how many bytes on the compiled kernels in ANYNPU_CACHE_DIR that were not used "
                         "for longest are removed");

const Option max_isa(
    "ANYNPU_MAX_ISA", "",
    "widest instruction set that kernels are compiled for, where the processor has it: avx2, "
    "avx512, or avx512_dot, which has dot products of pairs; default: the processor's");

/// How often a thread that waits for another one's compilation looks. (A wait without end is a function of
/// newer libstdc++ than this runs on.)
constexpr auto kLook = std::chrono::seconds(10);

std::string cache_folder() {
  std::string given = cache_dir.text();
  if (given == "off") return "";
  if (!given.empty()) return given;
  const auto from = [](const char* variable, const char* below) {
    const char* const value = std::getenv(variable);
    return value == nullptr || *value != '/' ? std::string() : std::string(value) + below;
  };
  const std::string folder = from("XDG_CACHE_HOME", "/anynpu");
  return folder.empty() ? from("HOME", "/.cache/anynpu") : folder;
}

Code compile_code(const tile::Kernel& kernel, Isa isa) { return compiler().compile(kernel, isa); }

/// Whether the sizes of scratch memory follow from what the kernel has.
bool is_of(const tile::Kernel& kernel, const Code& code) {
  using Kind = tile::Index::Kind;
  bool fits = true;
  const auto check = [&](const tile::Index& leaf) {
    const auto below = [&](size_t count) { return static_cast<uint64_t>(leaf.value()) < count; };
    if (leaf.kind() == Kind::kSize) fits &= below(kernel.sizes.size());
    if (leaf.kind() == Kind::kCounter) fits &= below(static_cast<size_t>(kernel.counters));
    if (leaf.kind() == Kind::kScalar) fits &= below(kernel.values.size());
  };
  for (const Scratch& scratch : code.scratch) {
    scratch.rows.for_each_leaf(check);
    scratch.cols.for_each_leaf(check);
  }
  return fits;
}

KernelCache* make_cache() {
  const std::string folder = cache_folder();
  DiskCache* const disk = folder.empty() ? nullptr : new DiskCache(folder, cache_bytes.integer());
  return new KernelCache(disk, compile_code);
}

}  // namespace

KernelCache::KernelCache(DiskCache* disk, Compile compile) : disk_(disk), compile_(std::move(compile)) {
  hold_in_forks(mutex_);
}

std::shared_ptr<const Compiled> KernelCache::get(const tile::Kernel& kernel, Isa isa) {
  tile::verify(kernel);  // before its text is taken
  const std::string key = concat(kBuildId, "\nisa ", static_cast<int>(isa), '\n', print(kernel));
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[key];  // which stays where it is
  const int process = ::getpid();
  while (entry.compiled == nullptr && entry.compiling == process) {
    const auto done = entry.done;  // keeps it, for threads that a fork leaves behind, too
    done->wait_for(lock, kLook);
  }
  if (entry.compiled != nullptr) return entry.compiled;
  entry.compiling = process;
  entry.done = std::make_shared<std::condition_variable>();
  lock.unlock();
  const auto finish = [&](std::shared_ptr<const Compiled> made) {
    lock.lock();
    entry.compiling = 0;
    entry.compiled = std::move(made);
    entry.done->notify_all();
  };
  try {
    finish(make(kernel, isa, key));
  } catch (...) {
    finish(nullptr);
    throw;
  }
  return entry.compiled;
}

std::shared_ptr<const Compiled> KernelCache::make(const tile::Kernel& kernel, Isa isa,
                                                  const std::string& key) {
  if (disk_ != nullptr)
    if (auto found = find_on_disk(kernel, key)) return found;
  const Code code = compile_(kernel, isa);
  auto made = loaded(kernel, code);
  if (disk_ != nullptr) disk_->store(key, to_bytes(code));
  return made;
}

std::shared_ptr<const Compiled> KernelCache::find_on_disk(const tile::Kernel& kernel,
                                                          const std::string& key) const {
  const auto found = disk_->find(key);
  if (!found) return nullptr;
  try {
    const Code code = code_of(*found);
    return is_of(kernel, code) ? loaded(kernel, code) : nullptr;
  } catch (const Error&) {  // it is replaced by what is compiled now
    return nullptr;
  }
}

std::shared_ptr<const Compiled> compiled(const tile::Kernel& kernel) {
  static std::atomic<KernelCache*> cache;
  return made_once(cache, make_cache).get(kernel, isa_of_machine());
}

std::shared_ptr<const Compiled> compile(tile::Kernel kernel, Isa isa) {
  tile::verify(kernel);
  const Code code = compile_code(kernel, isa);
  return loaded(std::move(kernel), code);
}

std::string code_text(const tile::Kernel& kernel, Stage stage, Isa isa) {
  tile::verify(kernel);
  return compiler().text(kernel, stage, isa);
}

int64_t product_columns(tile::DType sums, int64_t rows, int64_t most) {
  const VectorRegisters registers = vector_registers(isa_of_machine());
  return int64_t{product_block(registers, sums, rows, most).vectors} * registers.lanes;
}

const char* build_id() { return kBuildId; }

std::vector<Isa> isas_of_processor() {
  std::vector<Isa> isas = {Isa::kAvx2};
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
    return isas;
  isas.push_back(Isa::kAvx512);
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
    isas.push_back(Isa::kAvx512Dot);
  return isas;
}

Isa isa_of_machine() {
  static const Isa isa = [] {
    const auto there = isas_of_processor();
    const std::string most = max_isa.text();
    if (most.empty()) return there.back();
    const auto* found = std::ranges::find(kIsaNames, most);
    require(found != std::end(kIsaNames), ErrorCode::kInvalidArgument, max_isa.name(), " is '", most,
            "'; accepted are avx2, avx512, avx512_dot");
    return std::min(static_cast<Isa>(found - std::begin(kIsaNames)), there.back());
  }();
  return isa;
}

}  // namespace anynpu::jit
