#include "base/descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "base/fork.h"

namespace anynpu {
namespace {

struct Owned {
  std::mutex mutex;
  std::set<int> fds;
};

Owned& owned() {
  static auto* all = [] {
    auto* made = new Owned;
    hold_in_forks(made->mutex);
    pthread_atfork(nullptr, nullptr, [] {
      for (const int fd : owned().fds) close(fd);
      owned().fds.clear();
    });
    return made;
  }();
  return *all;
}

/// Made when the library is loaded, so that no fork can find it half made.
[[maybe_unused]] Owned& made_at_load = owned();

}  // namespace

Descriptor::Descriptor(int fd) : fd_(fd) {
  if (fd < 0) return;
  std::lock_guard lock(owned().mutex);
  owned().fds.insert(fd);
}

Descriptor::~Descriptor() {
  if (fd_ < 0) return;
  std::lock_guard lock(owned().mutex);
  if (owned().fds.erase(fd_) != 0) close(fd_);  // else a fork closed it, and the number may be another's
}

}  // namespace anynpu
