#include "runtime/shared_event.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "runtime/sharing.h"
#include "runtime/stream.h"
#include "runtime/watcher.h"

namespace anynpu {
namespace {

constexpr int kProcessBits = 22;  // Linux keeps numbers of processes below 2^22
constexpr size_t kRecordings = 64;

/// Events by the key that they were exported or imported with.
struct Known {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<SharedEvent>, std::less<>> events;
};
Known& known() {
  static auto* made = new Known;  // outlives every thread
  return *made;
}

}  // namespace

/// In memory that the processes share; zero at first.
struct SharedEvent::State {
  /// Number of the latest recording, from 1 on, and the process it is of: number << kProcessBits | process.
  std::atomic<uint64_t> latest;
  /// By number modulo kRecordings: the largest number that was reached. An older recording of that place
  /// counts as reached then.
  std::array<std::atomic<uint64_t>, kRecordings> reached;

  bool is_reached(uint64_t number) const { return reached[number % kRecordings].load() >= number; }
  void reach(uint64_t number) {
    auto& place = reached[number % kRecordings];
    for (uint64_t before = place; before < number && !place.compare_exchange_weak(before, number);) {
    }
  }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

SharedEvent::SharedEvent(Descriptor file, bool imported)
    : file_(std::move(file)), imported_(imported), state_([&] {
        void* mapped = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
        require(mapped != MAP_FAILED, ErrorCode::kOutOfMemory,
                "an event for several processes: ", std::strerror(errno));
        madvise(mapped, sizeof(State), MADV_DONTFORK);
        return static_cast<State*>(mapped);
      }()) {}

SharedEvent::~SharedEvent() {
  if (!Device::forked()) munmap(state_, sizeof(State));  // a fork does not inherit it
}

std::shared_ptr<SharedEvent> SharedEvent::create() {
  Descriptor file = make_memory_file(sizeof(State));
  require(static_cast<bool>(file), ErrorCode::kOutOfMemory,
          "an event for several processes: ", std::strerror(errno));
  return std::shared_ptr<SharedEvent>(new SharedEvent(std::move(file), false));
}

std::string SharedEvent::export_key() {
  require(!imported_, ErrorCode::kInvalidArgument,
          "exporting: the event was imported; the process that made it exports it");
  std::string key = export_file(ExportKind::kEvent, weak_from_this(), file_.get(), sizeof(State));
  std::lock_guard lock(known().mutex);
  known().events.emplace(key, weak_from_this());
  return key;
}

std::shared_ptr<SharedEvent> SharedEvent::import(std::string_view key) {
  std::lock_guard lock(known().mutex);
  std::erase_if(known().events, [](const auto& entry) { return entry.second.expired(); });
  if (const auto found = known().events.find(key); found != known().events.end())
    if (auto event = found->second.lock()) return event;
  Import import = import_file(key, ExportKind::kEvent);
  require(import.size == sizeof(State) && import.offset == 0, ErrorCode::kPeerFailed,
          "the process that exported the event has another version of it");
  const std::shared_ptr<SharedEvent> event(new SharedEvent(std::move(import.file), true));
  known().events.insert_or_assign(std::string(key), event);
  return event;
}

std::shared_ptr<Recording> SharedEvent::record(Stream& stream) {
  const auto process = static_cast<uint64_t>(getpid());
  uint64_t before = state_->latest, word = 0;
  do {
    word = ((before >> kProcessBits) + 1) << kProcessBits | process;
  } while (!state_->latest.compare_exchange_weak(before, word));
  const uint64_t number = word >> kProcessBits;
  auto recording = stream.record([self = shared_from_this(), number] { self->state_->reach(number); });
  std::lock_guard lock(mutex_);
  if (number >= latest_word_ >> kProcessBits) {
    latest_word_ = word;
    latest_ = recording;
  }
  return recording;
}

std::shared_ptr<Recording> SharedEvent::recording() {
  const uint64_t word = state_->latest;
  if (word == 0) return nullptr;
  std::lock_guard lock(mutex_);
  const uint64_t number = word >> kProcessBits;
  if (number > latest_word_ >> kProcessBits) {
    latest_ = recording_elsewhere(number, static_cast<int>(word & ((uint64_t{1} << kProcessBits) - 1)));
    latest_word_ = word;
  }
  return latest_;
}

/// A recording that is done when that of `process` is, or `process` has ended.
std::shared_ptr<Recording> SharedEvent::recording_elsewhere(uint64_t number, int process) {
  auto recording = std::make_shared<Recording>();
  const auto alive = std::make_shared<Descriptor>(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  const auto look = [self = shared_from_this(), recording, alive, number, process] {
    pollfd ended = {alive->get(), POLLIN, 0};
    const bool gone = !*alive || poll(&ended, 1, 0) != 0;  // looked at first: what it reached stands
    if (self->state_->is_reached(number)) {
      recording->complete(nullptr);
    } else if (gone) {
      recording->complete(std::make_exception_ptr(
          Error(ErrorCode::kPeerFailed, concat("process ", process, " ended before its event was reached"))));
    } else {
      return false;
    }
    return true;
  };
  if (!look()) Watcher::instance().watch(look);
  return recording;
}

}  // namespace anynpu
