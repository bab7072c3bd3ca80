#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>

#include "acl/acl.h"

/// Sets device 0 for the life of a test and finds no message of an earlier one.
class AclTest : public testing::Test {
 protected:
  void SetUp() override {
    (void)aclGetRecentErrMsg();
    ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS) << "the test may have ended on another device";
    EXPECT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS) << message();
  }

  /// What aclGetRecentErrMsg says, or "".
  static std::string message() {
    const char* text = aclGetRecentErrMsg();
    return text != nullptr ? text : "";
  }

  /// Expects the failure `code`, with a message that names the function and holds `part`.
  static void expect_failure(aclError status, aclError code, const std::string& part) {
    EXPECT_EQ(status, code);
    const std::string text = message();
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
    EXPECT_NE(text.find(" failed (" + std::to_string(code) + ", ACL"), std::string::npos) << text;
  }

  static aclrtStream make_stream() {
    aclrtStream stream = nullptr;
    EXPECT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS) << message();
    return stream;
  }

  static aclrtEvent make_event(uint32_t flags = ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE) {
    aclrtEvent event = nullptr;
    EXPECT_EQ(aclrtCreateEventExWithFlag(&event, flags), ACL_SUCCESS) << message();
    return event;
  }

  /// Enqueues a host function; the closure is destroyed after it ran.
  static void launch(aclrtStream stream, std::function<void()> function) {
    auto* closure = new std::function<void()>(std::move(function));
    const aclrtHostFunc run = [](void* argument) {
      const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(argument));
      (*owned)();
    };
    ASSERT_EQ(aclrtLaunchHostFunc(stream, run, closure), ACL_SUCCESS) << message();
  }

  /// A host function that holds its stream until the test lets it go.
  class Gate {
   public:
    explicit Gate(aclrtStream stream) {
      launch(stream, [state = state_] {
        state->entered.count_down();
        state->open.wait();
      });
    }
    ~Gate() { open(); }
    void open() {
      if (!state_->opened.exchange(true)) state_->open.count_down();
    }
    void wait_until_running() { state_->entered.wait(); }

   private:
    struct State {
      std::latch entered{1}, open{1};
      std::atomic<bool> opened = false;
    };
    std::shared_ptr<State> state_ = std::make_shared<State>();  // the function may end after the gate
  };
};

/// Runs `body` in a fork and returns its exit status; a child that hangs is killed and gives -1.
inline int status_of_fork(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
