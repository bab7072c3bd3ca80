// Random tile programs. What the interpreter gives, which keeps each value in memory, machine code gives too,
// bit for bit: in one thread, in two to eight, and of every fourth program by a kernel for each instruction,
// with its results in memory; for each instruction set of the machine. And the text form reads back.
//
// tile_fuzz SECONDS [SEED]: starts at SEED and goes on; ends with 1 at the first difference. SIGINT and
// SIGTERM end it as if its time were over.

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "fuzz/coverage.h"
#include "fuzz/random_kernel.h"
#include "fuzz/unfused.h"
#include "jit/jit.h"
#include "tile/text.h"

using namespace anynpu;

namespace {

using Clock = std::chrono::steady_clock;

volatile std::sig_atomic_t interrupted = 0;
std::atomic<uint64_t> current_seed = 0;

void report_crash(int signal) {  // what it calls is safe in a handler
  char text[80] = "seed ";
  char digits[24];
  size_t count = 0;
  for (uint64_t rest = current_seed; rest != 0 || count == 0; rest /= 10)
    digits[count++] = static_cast<char>('0' + rest % 10);
  size_t end = std::strlen(text);
  while (count != 0) text[end++] = digits[--count];
  constexpr char kWhat[] = " ended by a signal: memory beside a buffer was touched, or code is wrong\n";
  [[maybe_unused]] ssize_t written = ::write(STDOUT_FILENO, text, end);
  written = ::write(STDOUT_FILENO, kWhat, sizeof(kWhat) - 1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

/// Runs the blocks in so many threads, each some that follow one another.
void run_in_threads(const jit::Compiled& code, const tile::Arguments& arguments, int64_t blocks,
                    int64_t threads, std::mt19937_64& random) {
  std::vector<int64_t> cuts = {0, blocks};
  while (static_cast<int64_t>(cuts.size()) <= threads)
    cuts.push_back(std::uniform_int_distribution<int64_t>(0, blocks)(random));
  std::ranges::sort(cuts);
  std::vector<std::thread> running;
  for (size_t t = 0; t + 1 < cuts.size(); ++t)
    running.emplace_back([&, t] { code.run(arguments, cuts[t], cuts[t + 1]); });
  for (std::thread& thread : running) thread.join();
}

/// Kernels of one instruction, of which programs have many alike.
class Steps {
 public:
  explicit Steps(jit::Isa isa) : isa_(isa) {}
  std::shared_ptr<const jit::Compiled> operator()(const tile::Kernel& kernel) {
    if (compiled_.size() > 10000) compiled_.clear();  // each has pages of its own
    auto& found = compiled_[print(kernel)];
    if (found == nullptr) found = jit::compile(kernel, isa_);
    return found;
  }

 private:
  const jit::Isa isa_;
  std::unordered_map<std::string, std::shared_ptr<const jit::Compiled>> compiled_;
};

/// Machine code for one instruction set against the interpreter.
class Comparison {
 public:
  Comparison(jit::Isa isa, std::string_view name) : isa_(isa), name_(name), steps_(isa) {}

  /// What is wrong with a program; empty when nothing is. `expected`: the interpreter's results, unless it
  /// met a position out of range.
  std::string operator()(const tile::Workload& workload,
                         const std::optional<std::vector<tile::GuardedMemory>>& expected, uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto code = jit::compile(workload.kernel, isa_);
    std::vector<tile::GuardedMemory> actual;
    if (!expected)
      return raises(*code, workload.on_copies(actual)) ? "" : concat(name_, ": nothing raised\n");
    const auto found = [&](const std::string& how) {
      const std::string differs = difference(workload, *expected, actual);
      return differs.empty() ? "" : concat(name_, how, ":\n", differs);
    };
    code->run(workload.on_copies(actual));
    if (const std::string wrong = found(""); !wrong.empty()) return wrong;
    const int64_t blocks = tile::blocks_of(workload.kernel, workload.arguments.sizes);
    for (int64_t threads = 2; threads <= 8 && blocks > 1; ++threads) {
      run_in_threads(*code, workload.on_copies(actual), blocks, threads, random);
      if (const std::string wrong = found(concat(" in ", threads, " threads")); !wrong.empty()) return wrong;
    }
    if (seed % 4 != 0) return "";  // it takes as long as the four
    try {
      run_unfused(workload.kernel, workload.on_copies(actual), std::ref(steps_));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return "";  // some value has too many elements for memory of its own
    }
    return found(", a kernel for each instruction");
  }

 private:
  static bool raises(const jit::Compiled& code, const tile::Arguments& arguments) {
    try {
      code.run(arguments);
    } catch (const Error&) {
      return true;
    }
    return false;
  }

  const jit::Isa isa_;
  const std::string_view name_;
  Steps steps_;
};

class Fuzzer {
 public:
  Fuzzer() {
    for (const jit::Isa isa : jit::isas_of_processor())
      comparisons_.emplace_back(isa, jit::kIsaNames[static_cast<size_t>(isa)]);
  }

  /// What is wrong with the program of a seed; empty when nothing is.
  std::string check(uint64_t seed) {
    const auto workload = tile::random_kernel(seed);
    coverage_.add(workload.kernel);
    const std::string text = print(workload.kernel);
    if (tile::print(tile::parse(text).at(0)) != text) return "the text form reads back as another program";
    std::optional<std::vector<tile::GuardedMemory>> expected(std::in_place);
    try {
      tile::interpret(workload.kernel, workload.on_copies(*expected));
    } catch (const Error&) {
      expected.reset();
    }
    for (Comparison& compare : comparisons_)
      if (std::string wrong = compare(workload, expected, seed); !wrong.empty()) return wrong;
    return "";
  }
  const tile::Coverage& coverage() const { return coverage_; }

 private:
  std::vector<Comparison> comparisons_;
  tile::Coverage coverage_;
};

double cpu_seconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "tile_fuzz SECONDS [SEED]\n");
    return 2;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE}) std::signal(signal, report_crash);
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, [](int) { interrupted = 1; });
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration<double>(std::atof(argv[1]));
  const uint64_t first =
      argc > 2 ? std::strtoull(argv[2], nullptr, 0)
               : static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  Fuzzer fuzzer;
  std::string wrong;
  uint64_t seed = first;
  do {
    current_seed = seed;
    try {
      wrong = fuzzer.check(seed);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    if (!wrong.empty())
      std::printf("seed %llu:\n%s\n%s\n", static_cast<unsigned long long>(seed),
                  print(tile::random_kernel(seed).kernel).c_str(), wrong.c_str());
    ++seed;
  } while (wrong.empty() && interrupted == 0 && Clock::now() < end);
  std::printf("%s", fuzzer.coverage().text().c_str());
  std::printf("fuzz tile: %llu programs, %.0f s, %.0f s of CPU time, seeds %llu to %llu, build %s: %s\n",
              static_cast<unsigned long long>(seed - first),
              std::chrono::duration<double>(Clock::now() - start).count(), cpu_seconds(),
              static_cast<unsigned long long>(first), static_cast<unsigned long long>(seed - 1),
              jit::build_id(), wrong.empty() ? "no difference" : "a difference in the last");
  return wrong.empty() ? 0 : 1;
}
