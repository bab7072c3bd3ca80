#pragma once

#include <utility>

namespace anynpu {

/// Owns a file descriptor. A fork finds it closed: what it stands for ends with the process that made it.
/// Thread-safe as an int is.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);  ///< takes it over; -1 for none
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

}  // namespace anynpu
