#include "peer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <vector>

extern char** environ;

namespace {

constexpr const char* kRole = "ANYNPU_TEST_PEER";
constexpr size_t kPage = 4096;

/// The process that a Peer stands for.
class Actor {
 public:
  /// One line of words; the answer.
  std::string act(std::istringstream& words) {
    std::string verb;
    words >> verb;
    const auto found = verbs_.find(verb);
    return found != verbs_.end() ? found->second(words) : "what is " + verb + "?";
  }

 private:
  using Words = std::istringstream;
  template <class T>
  static T next(Words& words) {
    T value = {};
    words >> value;
    return value;
  }
  static std::string code(aclError status) { return std::to_string(status); }

  std::string allocate(Words& words) {  // SIZE VALUE
    const auto size = next<size_t>(words);
    const aclError status = aclrtMalloc(&memory_, size, ACL_MEM_MALLOC_HUGE_FIRST);
    return code(status == ACL_SUCCESS ? aclrtMemset(memory_, size, next<int>(words), size) : status);
  }
  std::string export_memory(Words& words) {  // SIZE FLAGS
    const auto size = next<size_t>(words);
    char key[ACL_IPC_HANDLE_SIZE] = "";
    return code(aclrtIpcMemGetExportKey(memory_, size, key, sizeof(key), next<uint64_t>(words))) + " " + key;
  }
  std::string allow(Words& words) {  // KEY PID
    const auto key = next<std::string>(words);
    int32_t pid = next<int32_t>(words);
    return code(aclrtIpcMemSetImportPid(key.c_str(), &pid, 1));
  }
  std::string import(Words& words) {  // KEY
    return code(aclrtIpcMemImportByKey(&memory_, next<std::string>(words).c_str(), 0));
  }
  std::string close(Words& words) { return code(aclrtIpcMemClose(next<std::string>(words).c_str())); }  // KEY
  std::string read(Words& words) {                                                                      // AT
    uint8_t byte = 0;
    const char* address = static_cast<char*>(memory_) + next<size_t>(words);
    const aclError status = aclrtMemcpy(&byte, 1, address, 1, ACL_MEMCPY_DEVICE_TO_HOST);
    return code(status) + " " + std::to_string(byte);
  }
  std::string fill(Words& words) {  // VALUE SIZE
    const int value = next<int>(words);
    const auto size = next<size_t>(words);
    return code(aclrtMemset(memory_, size, value, size));
  }
  std::string import_physical(Words& words) {  // HANDLE; and maps it
    aclrtDrvMemHandle handle = nullptr;
    const aclError status = aclrtMemImportFromShareableHandle(next<uint64_t>(words), 0, &handle);
    if (status != ACL_SUCCESS) return code(status);
    EXPECT_EQ(aclrtReserveMemAddress(&memory_, kPage, 0, nullptr, 0), ACL_SUCCESS);
    return code(aclrtMapMem(memory_, kPage, 0, handle, 0));
  }
  std::string make_event(Words&) {
    aclrtIpcEventHandle handle = {};
    EXPECT_EQ(aclrtCreateEventExWithFlag(&event_, ACL_EVENT_IPC), ACL_SUCCESS);
    const aclError status = aclrtIpcGetEventHandle(event_, &handle);
    return code(status) + " " + std::string(handle.reserved, sizeof(handle.reserved));
  }
  std::string open_event(Words& words) {  // HANDLE
    aclrtIpcEventHandle handle = {};
    next<std::string>(words).copy(handle.reserved, sizeof(handle.reserved));
    return code(aclrtIpcOpenEventHandle(handle, &event_));
  }
  std::string hold(Words&) {  // the default stream, until go()
    const aclrtHostFunc wait = [](void* go) { static_cast<std::atomic<bool>*>(go)->wait(false); };
    go_ = false;
    return code(aclrtLaunchHostFunc(nullptr, wait, &go_));
  }
  std::string go(Words&) {
    go_ = true;
    go_.notify_all();
    return "0";
  }
  std::string record(Words&) { return code(aclrtRecordEvent(event_, nullptr)); }
  std::string wait(Words&) { return code(aclrtStreamWaitEvent(nullptr, event_)); }
  std::string query(Words&) {
    aclrtStreamStatus status = {};
    EXPECT_EQ(aclrtStreamQuery(nullptr, &status), ACL_SUCCESS);
    return status == ACL_STREAM_STATUS_COMPLETE ? "done" : "not done";
  }
  std::string synchronize(Words&) { return code(aclrtSynchronizeStream(nullptr)); }
  std::string message(Words&) {
    const char* text = aclGetRecentErrMsg();
    std::string line = text != nullptr ? text : "";
    std::replace(line.begin(), line.end(), '\n', ' ');
    return line;
  }
  std::string fork_child(Words&) {  // which lives until killed
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      while (true) pause();
    }
    return std::to_string(child);
  }

  void* memory_ = nullptr;
  aclrtEvent event_ = nullptr;
  std::atomic<bool> go_ = false;
  const std::map<std::string, std::function<std::string(Words&)>> verbs_ = {
      {"allocate", [this](Words& words) { return allocate(words); }},
      {"export", [this](Words& words) { return export_memory(words); }},
      {"allow", [this](Words& words) { return allow(words); }},
      {"import", [this](Words& words) { return import(words); }},
      {"close", [this](Words& words) { return close(words); }},
      {"read", [this](Words& words) { return read(words); }},
      {"fill", [this](Words& words) { return fill(words); }},
      {"import-physical", [this](Words& words) { return import_physical(words); }},
      {"make-event", [this](Words& words) { return make_event(words); }},
      {"open-event", [this](Words& words) { return open_event(words); }},
      {"hold", [this](Words& words) { return hold(words); }},
      {"go", [this](Words& words) { return go(words); }},
      {"record", [this](Words& words) { return record(words); }},
      {"wait", [this](Words& words) { return wait(words); }},
      {"query", [this](Words& words) { return query(words); }},
      {"synchronize", [this](Words& words) { return synchronize(words); }},
      {"message", [this](Words& words) { return message(words); }},
      {"fork", [this](Words& words) { return fork_child(words); }},
  };
};

/// A process that was started as a peer acts as one, and never reaches main().
[[maybe_unused]] const bool started_as_peer = [] {
  if (std::getenv(kRole) == nullptr) return false;
  alarm(120);
  if (aclrtSetDevice(0) != ACL_SUCCESS) _exit(1);
  static auto* actor = new Actor;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::cout << actor->act(words) << std::endl;
  }
  _exit(0);
}();

}  // namespace

Peer::Peer() {
  int in[2], out[2];
  if (pipe(in) != 0 || pipe(out) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  for (const int fd : {in[0], in[1], out[0], out[1]}) posix_spawn_file_actions_addclose(&actions, fd);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  std::string role = std::string(kRole) + "=1";
  environment.push_back(role.data());
  environment.push_back(nullptr);
  char program[] = "/proc/self/exe";
  char* arguments[] = {program, nullptr};
  if (posix_spawn(&pid_, program, &actions, nullptr, arguments, environment.data()) != 0) std::abort();
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  to_ = in[1];
  from_ = out[0];
}

std::string Peer::exchange(const std::string& line) {
  std::string answer;
  if (write(to_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return "the peer is gone";
  for (char c = 0; read(from_, &c, 1) == 1 && c != '\n';) answer += c;
  return answer;
}

void Peer::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(to_);
  close(from_);
  pid_ = -1;
}
