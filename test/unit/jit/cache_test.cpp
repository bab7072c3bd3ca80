#include "jit/cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "jit/loader.h"
#include "tile/text.h"

namespace anynpu::jit {
namespace {

namespace fs = std::filesystem;

tile::Kernel kernel_adding(double number) {
  return tile::parse(
      concat("kernel @add(%x: f32[?n], %y: f32[?n]) grid(1) {\n"
             "  store %y[0], (add (load %x[0] : tile<1 x ?n, f32>), f32(",
             number, "))\n}"))[0];
}

float first_of(const Compiled& compiled, float x) {
  float y = 0;
  compiled.run({{1}, {{&x, {1}}, {&y, {1}}}, {}});
  return y;
}

/// A cache that counts what it compiles.
struct Counted {
  explicit Counted(DiskCache* disk)
      : cache(*new KernelCache(disk, [this](const tile::Kernel& kernel, Isa isa) {  // lives for ever
          ++compiled;
          return compiler().compile(kernel, isa);
        })) {}
  std::atomic<int> compiled = 0;
  KernelCache& cache;
};

class KernelCaches : public testing::Test {
 protected:
  KernelCaches() {
    std::string name = fs::temp_directory_path() / "anynpu-test-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~KernelCaches() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(KernelCaches, CompileEqualKernelsOnce) {
  Counted counted(nullptr);
  std::vector<std::shared_ptr<const Compiled>> found(8);
  std::vector<std::thread> threads;
  for (auto& each : found)
    threads.emplace_back([&] { each = counted.cache.get(kernel_adding(2), Isa::kAvx2); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counted.compiled, 1);
  for (const auto& each : found) EXPECT_EQ(each, found[0]);
  EXPECT_EQ(first_of(*found[0], 1), 3);

  EXPECT_NE(counted.cache.get(kernel_adding(3), Isa::kAvx2), found[0]);
  EXPECT_NE(counted.cache.get(kernel_adding(2), Isa::kAvx512), found[0]);
  EXPECT_EQ(counted.compiled, 3);
}

TEST_F(KernelCaches, TellKernelsApartThatTakeOtherSizes) {
  DiskCache disk(folder_, 1 << 20);
  const tile::Kernel kernel = kernel_adding(2);
  tile::Kernel with_unused = kernel, with_unused_first = kernel;
  with_unused.sizes = {"n", "unused"};
  with_unused_first.sizes = {"unused", "n"};
  for (tile::Buffer& buffer : with_unused_first.buffers) buffer.sizes = {tile::Index::size(1)};
  with_unused_first.body.instructions[0].type.cols = tile::Index::size(1);
  with_unused_first.values[number_of(with_unused_first.body.instructions[0].results[0])].type.cols =
      tile::Index::size(1);
  with_unused_first.values[number_of(with_unused_first.body.instructions[1].results[0])].type.cols =
      tile::Index::size(1);
  for (int turn = 0; turn < 2; ++turn) {
    Counted counted(&disk);
    float x = 1, y = 0;
    const auto run = [&](const tile::Kernel& some, std::vector<int64_t> sizes) {
      y = 0;
      counted.cache.get(some, Isa::kAvx2)->run({std::move(sizes), {{&x, {1}}, {&y, {1}}}, {}});
      return y;
    };
    EXPECT_EQ(run(kernel, {1}), 3);
    EXPECT_EQ(run(with_unused, {1, 40}), 3);
    EXPECT_EQ(run(with_unused_first, {40, 1}), 3);
    EXPECT_EQ(counted.compiled, turn == 0 ? 3 : 0);
  }
}

TEST_F(KernelCaches, TryAgainWhatFailed) {
  int turn = 0;
  auto& cache = *new KernelCache(nullptr, [&](const tile::Kernel& kernel, Isa isa) {
    require(++turn > 1, ErrorCode::kInternal, "not this time");
    return compiler().compile(kernel, isa);
  });
  EXPECT_THROW(cache.get(kernel_adding(2), Isa::kAvx2), Error);
  EXPECT_EQ(first_of(*cache.get(kernel_adding(2), Isa::kAvx2), 1), 3);
  auto invalid = kernel_adding(2);
  invalid.body.instructions.back().operands[0] = tile::Value{77};
  EXPECT_THROW(cache.get(invalid, Isa::kAvx2), Error);
}

TEST_F(KernelCaches, TakeFromDiskWhatAnotherOneCompiled) {
  DiskCache disk(folder_, 1 << 20);
  Counted first(&disk), second(&disk);
  EXPECT_EQ(first_of(*first.cache.get(kernel_adding(2), Isa::kAvx2), 1), 3);
  EXPECT_EQ(first_of(*second.cache.get(kernel_adding(2), Isa::kAvx2), 1), 3);
  EXPECT_EQ(first_of(*second.cache.get(kernel_adding(4), Isa::kAvx2), 1), 5);
  EXPECT_EQ(first.compiled, 1);
  EXPECT_EQ(second.compiled, 1);
}

TEST_F(KernelCaches, CompileAgainWhatIsDamagedOnDisk) {
  DiskCache disk(folder_, 1 << 20);
  Counted first(&disk);
  first.cache.get(kernel_adding(2), Isa::kAvx2);
  const fs::path entry = fs::directory_iterator(folder_)->path();
  const auto size = fs::file_size(entry);
  const auto flip = [&](uintmax_t at) {
    std::fstream file(entry, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  };
  const std::function<void()> damages[] = {[&] { flip(0); }, [&] { flip(size / 2); }, [&] { flip(size - 1); },
                                           [&] { fs::resize_file(entry, size / 2); },
                                           [&] { fs::resize_file(entry, 0); }};
  for (const auto& damage : damages) {
    damage();
    Counted again(&disk), then(&disk);
    EXPECT_EQ(first_of(*again.cache.get(kernel_adding(2), Isa::kAvx2), 1), 3);
    EXPECT_EQ(first_of(*then.cache.get(kernel_adding(2), Isa::kAvx2), 1), 3);
    EXPECT_EQ(again.compiled, 1);
    EXPECT_EQ(then.compiled, 0) << "it was repaired";
    EXPECT_EQ(fs::file_size(entry), size);
  }
}

TEST_F(KernelCaches, CompileAgainWhatIsNoCodeOfTheKernel) {
  const tile::Kernel kernel = kernel_adding(2);
  const std::string key = concat(build_id(), "\nisa ", static_cast<int>(Isa::kAvx2), '\n', print(kernel));
  const Code good = compiler().compile(kernel, Isa::kAvx2);
  Code without_function = good, outside = good, other_size = good;
  without_function.functions.push_back("no_function");
  outside.entry = good.bytes.size();
  other_size.scratch.push_back({tile::Index::size(7), 1, tile::DType::kF32});
  std::string no_type = to_bytes(other_size);
  no_type.back() = 99;
  const std::string cases[] = {"",
                               "code",
                               to_bytes(good) + "more",
                               to_bytes(without_function),
                               to_bytes(outside),
                               to_bytes(other_size),
                               no_type};
  for (const std::string& bytes : cases) {
    DiskCache disk(folder_, 1 << 20);
    disk.store(key, bytes);
    Counted again(&disk), then(&disk);
    EXPECT_EQ(first_of(*again.cache.get(kernel, Isa::kAvx2), 1), 3);
    EXPECT_EQ(first_of(*then.cache.get(kernel, Isa::kAvx2), 1), 3);
    EXPECT_EQ(again.compiled, 1);
    EXPECT_EQ(then.compiled, 0) << "it was replaced";
    EXPECT_EQ(disk.find(key), to_bytes(good));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(KernelCaches, CompileWithoutAFolder) {
  DiskCache disk("/proc/self/none/cache", 1 << 20);
  for (int turn = 0; turn < 2; ++turn) {
    Counted counted(&disk);
    EXPECT_EQ(first_of(*counted.cache.get(kernel_adding(2), Isa::kAvx2), 1), 3);
    EXPECT_EQ(counted.compiled, 1);
  }
}

TEST_F(KernelCaches, ServeManyProcessesThatStartAtOnceAndAreKilled) {
  constexpr int kKernels = 4, kProcesses = 12;
  int gate[2];
  ASSERT_EQ(::pipe2(gate, O_CLOEXEC), 0);
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    char none;
    ::close(gate[1]);
    [[maybe_unused]] const ssize_t opened = ::read(gate[0], &none, 1);  // ends when the other end is closed
    bool right = true;
    do {
      DiskCache disk(folder_, 1 << 20);
      Counted counted(&disk);
      for (int k = 0; k < kKernels; ++k) {
        const int number = (process + k) % kKernels;
        right &= first_of(*counted.cache.get(kernel_adding(number), Isa::kAvx2), 1) ==
                 static_cast<float>(number + 1);
      }
      disk.store(std::to_string(process), "what a kill may cut");
    } while (process % 3 == 0);  // those go on until they are killed
    ::_exit(right ? 0 : 1);
  }
  ::close(gate[0]);
  ::close(gate[1]);
  for (int process = 0; process < kProcesses; ++process) {
    int status = 0;
    const pid_t child = children[static_cast<size_t>(process)];
    if (process % 3 == 0) {
      ASSERT_EQ(::kill(child, SIGKILL), 0);
    }
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, process % 3 == 0 ? SIGKILL : 0) << process;
  }
  DiskCache disk(folder_, 1 << 20);
  Counted counted(&disk);
  for (int number = 0; number < kKernels; ++number)
    EXPECT_EQ(first_of(*counted.cache.get(kernel_adding(number), Isa::kAvx2), 1),
              static_cast<float>(number + 1));
  EXPECT_EQ(counted.compiled, 0);
}

TEST_F(KernelCaches, AForkWhileCompilingSurvives) {
  const auto main_thread = std::this_thread::get_id();
  std::promise<void> begun, go_on;
  auto& cache = *new KernelCache(nullptr, [&](const tile::Kernel& kernel, Isa isa) {
    if (std::this_thread::get_id() != main_thread) {
      begun.set_value();
      go_on.get_future().wait();
    }
    return compiler().compile(kernel, isa);
  });
  compiler();  // loaded before
  std::thread thread([&] { cache.get(kernel_adding(2), Isa::kAvx2); });
  begun.get_future().wait();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(first_of(*cache.get(kernel_adding(2), Isa::kAvx2), 1) == 3 ? 0 : 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  go_on.set_value();
  thread.join();
}

TEST(JitCodeBytes, AreReadBackAndCheckedForTheirEnd) {
  using tile::Index;
  const Index rows = min(4, Index::size(0) - 4 * Index::block()),
              cols = max(Index::counter(1) % 7, ceil_div(Index::scalar(3), 32));
  const Code code = {"bytes of code", 9, {"erf"}, {{rows, cols, tile::DType::kBF16}}};
  const std::string bytes = to_bytes(code);
  const Code read = code_of(bytes);
  EXPECT_EQ(read.bytes, code.bytes);
  EXPECT_EQ(read.entry, code.entry);
  EXPECT_EQ(read.functions, code.functions);
  ASSERT_EQ(read.scratch.size(), 1u);
  EXPECT_EQ(read.scratch[0].rows, rows);
  EXPECT_EQ(read.scratch[0].cols, cols);
  EXPECT_EQ(read.scratch[0].dtype, tile::DType::kBF16);
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_THROW(code_of(bytes.substr(0, i)), Error) << i;
  EXPECT_THROW(code_of(bytes + "x"), Error);
}

bool has_llvm() {
  std::ifstream maps("/proc/self/maps");
  const std::string text(std::istreambuf_iterator<char>(maps), {});
  return text.find("libLLVM") != std::string::npos;
}

/// What is found with a cache in `folder`, in a process that has compiled nothing: 10 if it is right, and 1
/// if LLVM was loaded for it.
[[noreturn]] void compile_in_a_new_process(const fs::path& folder) {
  if (has_llvm()) std::exit(2);
  ::setenv("ANYNPU_CACHE_DIR", folder.c_str(), 1);
  const bool right = first_of(*compiled(kernel_adding(2)), 1) == 3;
  std::exit((right ? 10 : 20) + (has_llvm() ? 1 : 0));
}

TEST(JitLoadingDeathTest, TakesLlvmWhenTheFirstKernelIsCompiled) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // new processes, which run this from its start
  constexpr const char* kFolder = "ANYNPU_TEST_FOLDER";
  std::string made = fs::temp_directory_path() / "anynpu-test-XXXXXX";
  if (::getenv(kFolder) == nullptr) ::setenv(kFolder, ::mkdtemp(made.data()), 0);
  const fs::path folder = ::getenv(kFolder);
  EXPECT_EXIT(compile_in_a_new_process(folder), testing::ExitedWithCode(11), "");
  EXPECT_EXIT(compile_in_a_new_process(folder), testing::ExitedWithCode(10), "");
  EXPECT_EXIT(compile_in_a_new_process("off"), testing::ExitedWithCode(11), "");
  fs::remove_all(folder);
  ::unsetenv(kFolder);
}

}  // namespace
}  // namespace anynpu::jit
