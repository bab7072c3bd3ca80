#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "runtime/event.h"

namespace anynpu {

/// An event that several processes record and wait for: the latest recording is that of all of them. What a
/// recorder has reached stands in memory that they share. Thread-safe.
class SharedEvent : public std::enable_shared_from_this<SharedEvent> {
 public:
  static std::shared_ptr<SharedEvent> create();
  /// The event of that key; one object in a process. Raises what Exporter::import() does.
  static std::shared_ptr<SharedEvent> import(std::string_view key);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;

  /// A key (see sharing.h) by which every process of this user can import the event while it lives here.
  /// Raises kInvalidArgument where it was imported.
  std::string export_key();

  std::shared_ptr<Recording> record(Stream& stream);
  /// The latest recording, or null. One of another process carries no error of its stream, but kPeerFailed
  /// when that process ends before it is reached.
  std::shared_ptr<Recording> recording();

 private:
  struct State;

  SharedEvent(Descriptor file, bool imported);
  std::shared_ptr<Recording> recording_elsewhere(uint64_t number, int process);

  const Descriptor file_;
  const bool imported_;
  State* const state_;
  std::mutex mutex_;
  uint64_t latest_word_ = 0;           // the recording that latest_ stands for; guarded by mutex_
  std::shared_ptr<Recording> latest_;  // guarded by mutex_
};

}  // namespace anynpu
