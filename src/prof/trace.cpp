#include "prof/trace.h"

#include <unistd.h>

#include <mutex>
#include <utility>

#include "base/error.h"

namespace anynpu {
namespace {

constinit thread_local const TaskLabel* innermost = nullptr;
thread_local std::vector<uint64_t> externals;
std::atomic<uint64_t> next_correlation = 1;

/// What is collected. A task belongs to the trace during which it was enqueued.
struct Collected {
  std::mutex mutex;
  uint64_t first_correlation = 0;
  std::vector<TracedTask> tasks;
};

Collected& collected() {
  static auto* all = new Collected;  // outlives every thread
  return *all;
}

/// The system's clock, but steady: it is read once.
int64_t now() {
  using std::chrono::duration_cast, std::chrono::nanoseconds, std::chrono::steady_clock;
  static const auto offset =
      std::chrono::system_clock::now().time_since_epoch() - steady_clock::now().time_since_epoch();
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch() + offset).count();
}

}  // namespace

TaskLabel::TaskLabel(const char* name, TaskKind kind, uint64_t bytes)
    : name_(name), kind_(kind), bytes_(bytes), outer_(std::exchange(innermost, this)) {}

TaskLabel::~TaskLabel() { innermost = outer_; }

void Trace::start() {
  std::lock_guard lock(collected().mutex);
  require(!active(), ErrorCode::kInvalidArgument, "a trace is being collected already; one at a time is");
  collected().first_correlation = next_correlation;
  collected().tasks.clear();
  active_ = true;
}

std::vector<TracedTask> Trace::stop() {
  std::lock_guard lock(collected().mutex);
  active_ = false;
  return std::exchange(collected().tasks, {});
}

void Trace::push_external(uint64_t id) { externals.push_back(id); }

void Trace::pop_external() {
  if (!externals.empty()) externals.pop_back();
}

std::unique_ptr<TracedTask> Trace::begin_active(int device, uint64_t stream) {
  if (innermost == nullptr) return nullptr;
  auto task = std::make_unique<TracedTask>();
  task->name = innermost->name_;
  task->kind = innermost->kind_;
  task->bytes = innermost->bytes_;
  task->device = device;
  task->stream = stream;
  task->correlation = next_correlation++;
  task->external = externals.empty() ? 0 : externals.back();
  task->thread = gettid();
  task->enqueued = now();
  return task;
}

void Trace::started(TracedTask& task) { task.started = now(); }

void Trace::ended(std::unique_ptr<TracedTask> task) {
  task->ended = now();
  std::lock_guard lock(collected().mutex);
  if (active() && task->correlation >= collected().first_correlation) collected().tasks.push_back(*task);
}

}  // namespace anynpu
