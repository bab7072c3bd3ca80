// Costs of the runtime's smallest acts, beside what the system asks for the same: prints one JSON object,
// {"case": {"median": seconds, "best": seconds}, ...}. All cases take turns in every round, so that whatever
// else happens on the machine meets them alike.

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "runtime/block_pool.h"
#include "runtime/device.h"
#include "runtime/event.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace {

using anynpu::Block;
using anynpu::BlockPool;
using anynpu::Device;
using anynpu::Event;
using anynpu::Lane;
using anynpu::Stream;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Seconds per call of `act`, over `count` calls in a row.
template <class Act>
double time_each(int count, const Act& act) {
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) act();
  return seconds_since(start) / count;
}

/// The median of single calls; before each, `rest` lets the threads that the call will need fall asleep.
template <class Act>
double time_from_rest(int count, std::chrono::microseconds rest, const Act& act) {
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    std::this_thread::sleep_for(rest);
    times.push_back(time_each(1, act));
  }
  std::nth_element(times.begin(), times.begin() + count / 2, times.end());
  return times[count / 2];
}

/// Runs `act` on one core, then returns on another; threads that `act` starts stay where they began. A
/// wake-up costs ten times as much between cores as on one, so where threads stand is decided here and not by
/// the scheduler.
void start_threads_on_another_core(const std::function<void()>& act) {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  const auto move_to = [](int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
  };
  move_to(cores.back());
  act();
  move_to(cores.front());
}

/// Two threads that hand a word to and fro and sleep in the kernel meanwhile.
class PingPong {
 public:
  PingPong() : partner_([this] { answer(); }) {}
  ~PingPong() {
    hand_over(kEnd);
    partner_.join();
  }
  PingPong(const PingPong&) = delete;

  void round_trip() {
    hand_over(kTheirs);
    await(kMine);
  }

 private:
  enum Turn : uint32_t { kMine, kTheirs, kEnd };

  void answer() {
    while (await_other_than(kMine) == kTheirs) hand_over(kMine);
  }
  void hand_over(Turn turn) {
    turn_.store(turn);
    syscall(SYS_futex, &turn_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
  uint32_t await_other_than(uint32_t turn) {
    while (turn_.load() == turn) syscall(SYS_futex, &turn_, FUTEX_WAIT_PRIVATE, turn, nullptr, nullptr, 0);
    return turn_.load();
  }
  void await(Turn turn) {
    for (uint32_t now = turn_.load(); now != turn; now = turn_.load())
      syscall(SYS_futex, &turn_, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
  }

  std::atomic<uint32_t> turn_ = kMine;
  std::thread partner_;
};

/// Parks `stream` behind a point that open() lets happen.
class Gate {
 public:
  explicit Gate(Stream& stream) : recording_(std::make_shared<anynpu::Recording>()) {
    stream.wait(recording_);
  }
  void open() { recording_->complete(nullptr); }

 private:
  std::shared_ptr<anynpu::Recording> recording_;
};

struct Case {
  std::string name;
  std::function<double()> sample;  ///< seconds of one act
  std::vector<double> samples = {};
};

constexpr int kBatch = 2000;   // acts in one sample, where an act takes below a microsecond
constexpr int kQueued = 1000;  // tasks in the queue
constexpr auto kRest = std::chrono::microseconds(200);  // after it, a thread without work sleeps

std::vector<Case> launch_cases() {
  auto stream = Device::get(0).create_stream();
  const auto drained = [stream](Lane lane) {
    stream->launch(lane, [] {});
    stream->synchronize();
  };
  const auto queued = [stream](Lane lane) {
    Gate gate(*stream);
    const auto start = Clock::now();
    for (int i = 0; i < kQueued; ++i) stream->launch(lane, [] {});
    gate.open();
    stream->synchronize();
    return seconds_since(start) / kQueued;
  };
  constexpr size_t kCopied = 4096;
  BlockPool& pool = Device::get(0).pool();
  char* from = static_cast<char*>(BlockPool::address(pool.allocate(kCopied, stream->id())));
  char* to = static_cast<char*>(BlockPool::address(pool.allocate(kCopied, stream->id())));
  std::memset(from, 1, kCopied);
  auto event = std::make_shared<Event>();
  auto ping_pong = std::make_shared<PingPong>();
  return {
      {"futex_wake_up", [=] { return time_from_rest(20, kRest, [&] { ping_pong->round_trip(); }) / 2; }},
      {"launch_short", [=] { return time_each(kBatch, [&] { drained(Lane::kShort); }); }},
      {"launch_parallel", [=] { return time_from_rest(20, kRest, [&] { drained(Lane::kParallel); }); }},
      {"launch_host", [=] { return time_from_rest(20, kRest, [&] { drained(Lane::kHost); }); }},
      {"queued_short", [=] { return queued(Lane::kShort); }},
      {"queued_parallel", [=] { return queued(Lane::kParallel); }},
      {"queued_host", [=] { return queued(Lane::kHost); }},
      {"copy_4k", [=] { return time_each(kBatch, [&] { anynpu::copy_async(to, from, kCopied, *stream); }); }},
      {"event_record", [=] { return time_each(kBatch, [&] { event->record(*stream); }); }},
  };
}

/// Memory of `size` bytes straight from the system: mapped, each page touched, and given back.
void map_and_touch(size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  anynpu::require(address != MAP_FAILED, anynpu::ErrorCode::kOutOfMemory, "mmap of ", size, " bytes failed");
  auto* bytes = static_cast<volatile char*>(address);
  for (size_t at = 0; at < size; at += anynpu::Arena::kPage) bytes[at] = 1;
  munmap(address, size);
}

std::vector<Case> memory_cases() {
  const std::pair<const char*, size_t> sizes[] = {
      {"4k", size_t{4} << 10}, {"1m", size_t{1} << 20}, {"64m", size_t{64} << 20}};
  std::vector<Case> cases;
  for (const auto& [name, size] : sizes) {
    cases.push_back({std::string("pool_") + name, [size = size] {
                       BlockPool& pool = Device::get(0).pool();
                       const uint64_t stream = Device::get(0).default_stream().id();
                       return time_each(kBatch, [&] { pool.free(pool.allocate(size, stream)); });
                     }});
    const int count = size < (size_t{1} << 20) ? kBatch / 10 : 1;
    cases.push_back({std::string("mmap_") + name,
                     [=, size = size] { return time_each(count, [&] { map_and_touch(size); }); }});
  }
  return cases;
}

void print(std::vector<Case>& cases) {
  const char* before = "{";
  for (Case& each : cases) {
    std::sort(each.samples.begin(), each.samples.end());
    std::printf("%s\"%s\": {\"median\": %.4g, \"best\": %.4g}", before, each.name.c_str(),
                each.samples[each.samples.size() / 2], each.samples.front());
    before = ",\n ";
  }
  std::printf("}\n");
}

void run(double seconds) {
  std::vector<Case> cases;
  start_threads_on_another_core([&] {
    cases = launch_cases();
    for (Case& each : memory_cases()) cases.push_back(std::move(each));
    for (Case& each : cases) each.sample();  // first calls start threads and commit memory
  });
  const auto start = Clock::now();
  do {
    for (Case& each : cases) each.samples.push_back(each.sample());
  } while (seconds_since(start) < seconds);
  print(cases);
}

}  // namespace

int main(int argc, char** argv) {
  char* end = nullptr;
  const double seconds = argc == 2 ? std::strtod(argv[1], &end) : 0;
  if (end == nullptr || *end != '\0' || !(seconds > 0)) {
    std::fprintf(stderr, "usage: %s SECONDS   (how long to repeat; above 0)\n", argv[0]);
    return 2;
  }
  try {
    run(seconds);
  } catch (const anynpu::Error& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
  return 0;
}
