#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>

#include "acl/acl.h"

/// Another process that runs this program, and acts on lines of words that it is sent: see act() in peer.cpp.
class Peer {
 public:
  Peer();
  ~Peer() { kill(); }
  Peer(const Peer&) = delete;

  pid_t pid() const { return pid_; }
  /// What the peer answers: of a call of AscendCL its code, and its result after a blank.
  template <class... Words>
  std::string ask(const Words&... words) {
    std::ostringstream line;
    ((line << words << ' '), ...);
    return exchange(line.str() + "\n");
  }
  void kill();  ///< as `kill -9` does, and waits for its end

 private:
  std::string exchange(const std::string& line);

  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
};
