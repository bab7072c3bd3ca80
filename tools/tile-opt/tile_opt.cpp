// tile-opt: what becomes of a tile program. See README.md.

#include <getopt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/sha256.h"
#include "jit/jit.h"
#include "tile/interpret.h"
#include "tile/lane.h"
#include "tile/text.h"
#include "tile/verify.h"
#include "workload.h"

using namespace anynpu;

namespace {

struct Options {
  std::map<std::string, int64_t> sizes;
  uint64_t seed = 1;
  jit::Isa isa = jit::isa_of_machine();
  std::string kernel;  ///< empty: all
};

template <class... Parts>
void refuse_unless(bool condition, const Parts&... parts) {
  require(condition, ErrorCode::kInvalidArgument, "tile-opt: ", parts...);
}

tile::Workload workload_of(const tile::Kernel& kernel, const Options& options) {
  std::vector<int64_t> sizes;
  for (const std::string& name : kernel.sizes) {
    const auto found = options.sizes.find(name);
    refuse_unless(found != options.sizes.end(), "kernel @", kernel.name, " takes a size ?", name,
                  "; give --size ", name, "=NUMBER");
    sizes.push_back(found->second);
  }
  std::mt19937_64 random(options.seed);
  return tile::make_workload(kernel, sizes, tile::Layout::kDense, random);
}

// Values.

/// Numbers with one bit pattern for all NaNs.
template <class Number>
void print_values(const std::string& name, std::string_view dtype, const std::vector<Number>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Number));
  std::cout << "%" << name << ": " << dtype << ", " << values.size() << " elements, sha256 "
            << hex(sha256(bytes)).substr(0, 16) << ":";
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(values.size(), kShown); ++i) std::cout << ' ' << values[i];
  std::cout << (values.size() > kShown ? " ...\n" : "\n");
}

void print_results(const tile::Workload& workload, const std::vector<tile::GuardedMemory>& memory) {
  std::cout << "kernel @" << workload.kernel.name << '\n';
  for (const size_t i : workload.written) {
    const tile::Buffer& buffer = workload.kernel.buffers[i];
    tile::visit(buffer.dtype, [&]<class T>(std::type_identity<T>) {
      using Number = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
      std::vector<Number> values;
      for (size_t at = 0; at + sizeof(T) <= memory[i].size(); at += sizeof(T)) {
        T element;
        std::memcpy(&element, memory[i].data() + at, sizeof(T));
        const auto number = tile::convert<Number>(element);
        values.push_back(number == number ? number : std::numeric_limits<Number>::quiet_NaN());
      }
      print_values(buffer.name, tile::name_of(buffer.dtype), values);
    });
  }
}

// Commands. Each returns whether all is well.

bool print_text(const tile::Kernel& kernel, const Options&) {
  std::cout << tile::print(kernel);
  return true;
}

template <jit::Stage stage>
bool print_code(const tile::Kernel& kernel, const Options& options) {
  std::cout << jit::code_text(kernel, stage, options.isa);
  return true;
}

bool interpret(const tile::Kernel& kernel, const Options& options) {
  const auto workload = workload_of(kernel, options);
  std::vector<tile::GuardedMemory> memory;
  tile::interpret(workload.kernel, workload.on_copies(memory));
  print_results(workload, memory);
  return true;
}

/// Raises kInvalidArgument where the program accesses memory outside its buffers, for which machine code
/// does not look.
void check_accesses(const tile::Workload& workload) {
  std::vector<tile::GuardedMemory> memory;
  tile::interpret(workload.kernel, workload.on_copies(memory));
}

bool run(const tile::Kernel& kernel, const Options& options) {
  const auto workload = workload_of(kernel, options);
  check_accesses(workload);
  std::vector<tile::GuardedMemory> memory;
  jit::compile(kernel, options.isa)->run(workload.on_copies(memory));
  print_results(workload, memory);
  return true;
}

bool compare(const tile::Kernel& kernel, const Options& options) {
  const auto workload = workload_of(kernel, options);
  std::vector<tile::GuardedMemory> expected, actual;
  tile::interpret(workload.kernel, workload.on_copies(expected));
  jit::compile(kernel, options.isa)->run(workload.on_copies(actual));
  const std::string found = difference(workload, expected, actual);
  std::cout << "kernel @" << kernel.name << ": " << (found.empty() ? "no difference\n" : "\n" + found);
  return found.empty();
}

using Clock = std::chrono::steady_clock;

/// The processor time of this thread, in seconds: what other processes take does not count.
double thread_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// The least time of a call, in seconds, of turns that fill a third of a second, and three at least. A turn
/// is as many calls as the clock can tell from none.
template <class Function>
double least_time(const Function& function) {
  constexpr double kLeastTurn = 1e-4;
  double least = HUGE_VAL;
  int64_t calls = 1;
  const auto start = Clock::now();
  for (int turn = 0; turn < 3 || Clock::now() - start < std::chrono::milliseconds(333);) {
    const double before = thread_seconds();
    for (int64_t i = 0; i < calls; ++i) function();
    const double seconds = thread_seconds() - before;
    if (seconds < kLeastTurn) {
      calls *= 2;
      continue;
    }
    least = std::min(least, seconds / static_cast<double>(calls));
    ++turn;
  }
  return least;
}

bool time(const tile::Kernel& kernel, const Options& options) {
  const auto workload = workload_of(kernel, options);
  check_accesses(workload);
  std::shared_ptr<const jit::Compiled> compiled;
  const double compiling = least_time([&] { compiled = jit::compile(kernel, options.isa); });
  std::vector<tile::GuardedMemory> memory;
  const tile::Arguments arguments = workload.on_copies(memory);
  const double running = least_time([&] { compiled->run(arguments); });
  double bytes = 0, elements = 0;
  for (size_t i = 0; i < memory.size(); ++i) {
    const double size = static_cast<double>(memory[i].size());
    bytes += size;
    elements = std::max(elements, size / static_cast<double>(size_of(kernel.buffers[i].dtype)));
  }
  std::printf("kernel @%s: compiled in %.2f ms; one thread: %.3f us a run, %.4f ns an element, %.2f GB/s\n",
              kernel.name.c_str(), compiling * 1e3, running * 1e6, running * 1e9 / elements,
              bytes / running / 1e9);
  return true;
}

struct Command {
  std::string_view name, help;
  bool (*run)(const tile::Kernel&, const Options&);
};
const Command kCommands[] = {
    {"print", "the program, checked, in its canonical form", print_text},
    {"schedule", "what is computed in which loop", print_code<jit::Stage::kSchedule>},
    {"emitted", "LLVM IR", print_code<jit::Stage::kEmitted>},
    {"optimized", "LLVM IR after its passes", print_code<jit::Stage::kOptimized>},
    {"assembly", "assembly for --isa", print_code<jit::Stage::kAssembly>},
    {"aarch64", "assembly for AArch64", print_code<jit::Stage::kAssemblyAArch64>},
    {"interpret", "checksums and first elements of what it writes, by the interpreter", interpret},
    {"run", "the same, by machine code", run},
    {"compare", "whether the interpreter and machine code agree, bit for bit", compare},
    {"time", "how long compiling and running take", time},
};

std::string usage() {
  std::string text =
      "tile-opt COMMAND [OPTION]... [FILE]\n"
      "Reads tile programs from FILE, or standard input, and prints of each:\n";
  for (const Command& command : kCommands)
    text.append("  ").append(command.name).append(12 - command.name.size(), ' ').append(command.help) += '\n';
  return text +
         "Options:\n"
         "  --size NAME=NUMBER  a size of the program, for what runs it; once for each\n"
         "  --seed NUMBER       of the random elements and scalars it runs on (default: 1)\n"
         "  --isa NAME          what to compile for: avx2, avx512, avx512_dot (default: the widest here)\n"
         "  --kernel NAME       one of several programs\n";
}

int64_t number_of(std::string_view text, std::string_view option) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  refuse_unless(error == std::errc() && end == text.data() + text.size() && number >= 0, option, ": '", text,
                "' is not a number of 0 or more");
  return number;
}

jit::Isa isa_of(std::string_view name) {
  const auto* found = std::ranges::find(jit::kIsaNames, name);
  refuse_unless(found != std::end(jit::kIsaNames), "--isa: '", name,
                "' is not one of avx2, avx512, avx512_dot");
  return static_cast<jit::Isa>(found - std::begin(jit::kIsaNames));
}

void take(int option, std::string_view value, Options& options) {
  switch (option) {
    case 's': {
      const size_t equals = value.find('=');
      refuse_unless(equals != std::string_view::npos, "--size: '", value, "' is not NAME=NUMBER");
      options.sizes[std::string(value.substr(0, equals))] = number_of(value.substr(equals + 1), "--size");
      break;
    }
    case 'r':
      options.seed = static_cast<uint64_t>(number_of(value, "--seed"));
      break;
    case 'i':
      options.isa = isa_of(value);
      break;
    default:
      options.kernel = value;
  }
}

std::string text_of(const char* file) {
  if (file == nullptr) return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream in(file);
  refuse_unless(in.good() && !std::filesystem::is_directory(file), "cannot read ", file);
  return {std::istreambuf_iterator<char>(in), {}};
}

int main_of(int count, char** arguments) {
  const option kOptions[] = {
      {"size", required_argument, nullptr, 's'}, {"seed", required_argument, nullptr, 'r'},
      {"isa", required_argument, nullptr, 'i'},  {"kernel", required_argument, nullptr, 'k'},
      {"help", no_argument, nullptr, 'h'},       {}};
  Options options;
  for (int given; (given = getopt_long(count, arguments, "", kOptions, nullptr)) != -1;) {
    if (given == 'h') {
      std::cout << usage();
      return 0;
    }
    if (given == '?') return 2;  // getopt_long has said why
    take(given, optarg, options);
  }
  const std::string_view name = optind < count ? arguments[optind] : "";
  const auto* command = std::ranges::find(kCommands, name, &Command::name);
  if (command == std::end(kCommands) || count - optind > 2) {
    std::cerr << usage();
    return 2;
  }
  bool well = true, any = false;
  for (const tile::Kernel& kernel :
       tile::parse(text_of(count - optind == 2 ? arguments[optind + 1] : nullptr))) {
    if (!options.kernel.empty() && kernel.name != options.kernel) continue;
    any = true;
    tile::verify(kernel);
    well &= command->run(kernel, options);
  }
  refuse_unless(any, options.kernel.empty() ? "no kernel in the input" : "no kernel @" + options.kernel);
  return well ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return main_of(count, arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
