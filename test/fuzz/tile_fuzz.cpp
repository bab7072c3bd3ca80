// Random tile programs: what the interpreter gives, which keeps each value in memory, machine code gives too,
// bit for bit, in one thread and in several; and the text form reads back. tile_fuzz SECONDS [SEED]: starts
// at SEED and goes on; ends with 1 at the first difference.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "fuzz/random_kernel.h"
#include "jit/jit.h"
#include "tile/text.h"

using namespace anynpu;

namespace {

/// Runs the blocks in so many threads, each some that follow one another.
void run_in_threads(const jit::Compiled& code, const tile::Arguments& arguments, int64_t blocks,
                    int64_t threads) {
  std::vector<std::thread> running;
  for (int64_t t = 0; t < threads; ++t)
    running.emplace_back([&, t] { code.run(arguments, blocks * t / threads, blocks * (t + 1) / threads); });
  for (std::thread& thread : running) thread.join();
}

/// What is wrong with the program of a seed; empty when nothing is.
std::string check(uint64_t seed) {
  const auto random = tile::random_kernel(seed);
  const std::string text = print(random.kernel);
  if (tile::print(tile::parse(text).at(0)) != text) return "the text form reads back as another program";
  std::vector<std::vector<std::byte>> expected, actual;
  tile::interpret(random.kernel, random.on_copies(expected));
  for (const jit::Isa isa : {jit::Isa::kAvx2, jit::Isa::kAvx512}) {
    if (isa > jit::isa_of_machine()) continue;
    const std::string name = isa == jit::Isa::kAvx2 ? "AVX2" : "AVX-512";
    const auto code = jit::compile(random.kernel, isa);
    code->run(random.on_copies(actual));
    std::string found = difference(random, expected, actual);
    if (!found.empty()) return name + ":\n" + found;
    const int64_t threads = 2 + static_cast<int64_t>(seed % 7);
    const tile::Arguments again = random.on_copies(actual);
    run_in_threads(*code, again, tile::blocks_of(random.kernel, again.sizes), threads);
    found = difference(random, expected, actual);
    if (!found.empty()) return name + " in " + std::to_string(threads) + " threads:\n" + found;
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "tile_fuzz SECONDS [SEED]\n");
    return 2;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::atof(argv[1]));
  const uint64_t first =
      argc > 2 ? std::strtoull(argv[2], nullptr, 0)
               : static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  uint64_t seed = first;
  do {
    std::string found;
    try {
      found = check(seed);
    } catch (const std::exception& error) {
      found = error.what();
    }
    if (!found.empty()) {
      std::printf("seed %llu:\n%s\n%s", static_cast<unsigned long long>(seed),
                  print(tile::random_kernel(seed).kernel).c_str(), found.c_str());
      return 1;
    }
    ++seed;
  } while (std::chrono::steady_clock::now() < end);
  std::printf("%llu programs from seed %llu on, no difference\n",
              static_cast<unsigned long long>(seed - first), static_cast<unsigned long long>(first));
  return 0;
}
