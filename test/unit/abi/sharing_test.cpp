// Device memory and events of several processes.

#include <dirent.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

#include "abi_test.h"
#include "peer.h"

namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kAny = ACL_RT_IPC_MEM_EXPORT_FLAG_DISABLE_PID_VALIDATION;

std::string text(aclError code) { return std::to_string(code); }

/// What follows the code in an answer that begins with ACL_SUCCESS.
std::string result(const std::string& answer) {
  EXPECT_EQ(answer.substr(0, 2), "0 ") << answer;
  return answer.substr(std::min<size_t>(2, answer.size()));
}

bool listed_among_sockets(pid_t pid) {
  std::ifstream sockets("/proc/net/unix");
  const std::string all((std::istreambuf_iterator<char>(sockets)), {});
  std::string end(".");
  return all.find(end.append(std::to_string(pid)).append("\n")) != std::string::npos;
}

class AclSharing : public AclTest {
 protected:
  static char* allocate(size_t size, int value) {
    void* memory = nullptr;
    EXPECT_EQ(aclrtMalloc(&memory, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << message();
    EXPECT_EQ(aclrtMemset(memory, size, value, size), ACL_SUCCESS);
    return static_cast<char*>(memory);
  }
  static std::string export_key(void* memory, size_t size, uint64_t flags = kAny) {
    char key[ACL_IPC_HANDLE_SIZE] = "";
    EXPECT_EQ(aclrtIpcMemGetExportKey(memory, size, key, sizeof(key), flags), ACL_SUCCESS) << message();
    EXPECT_EQ(std::strlen(key), size_t{ACL_IPC_HANDLE_SIZE} - 1);
    return key;
  }
  static char* import(const std::string& key) {
    void* memory = nullptr;
    EXPECT_EQ(aclrtIpcMemImportByKey(&memory, key.c_str(), 0), ACL_SUCCESS) << message();
    return static_cast<char*>(memory);
  }
  static int read(const char* memory) {
    uint8_t byte = 0;
    EXPECT_EQ(aclrtMemcpy(&byte, 1, memory, 1, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS) << message();
    return byte;
  }
  static size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
    return free;
  }
};

TEST_F(AclSharing, APeerReadsAndWritesWhatWasExported) {
  Peer peer;
  char* memory = allocate(3 * kPage, 1);
  ASSERT_EQ(aclrtMemset(memory + kPage, kPage, 2, kPage), ACL_SUCCESS);
  const size_t before = free_bytes();
  const std::string key = export_key(memory + kPage, kPage);
  EXPECT_EQ(free_bytes(), before) << "exporting takes no memory";
  EXPECT_EQ(read(memory), 1);
  EXPECT_EQ(read(memory + kPage), 2) << "it holds what it held";
  EXPECT_EQ(read(memory + 2 * kPage), 1);

  ASSERT_EQ(peer.ask("import", key), "0") << peer.ask("message");
  EXPECT_EQ(peer.ask("read", 0), "0 2");
  EXPECT_EQ(peer.ask("read", kPage).substr(0, 6), text(ACL_ERROR_RT_PARAM_INVALID))
      << "and no more than that";
  EXPECT_EQ(peer.ask("fill", 7, kPage), "0");
  EXPECT_EQ(read(memory + kPage - 1), 1);
  EXPECT_EQ(read(memory + kPage), 7);
  EXPECT_EQ(read(memory + 2 * kPage - 1), 7);
  EXPECT_EQ(read(memory + 2 * kPage), 1);
  ASSERT_EQ(aclrtMemset(memory + kPage, kPage, 9, kPage), ACL_SUCCESS);
  EXPECT_EQ(peer.ask("read", 5), "0 9");

  EXPECT_EQ(peer.ask("close", key), "0");
  EXPECT_EQ(peer.ask("close", key), text(ACL_ERROR_RT_INVALID_HANDLE));
  EXPECT_NE(peer.ask("message").find("nothing is imported by it here"), std::string::npos);
  EXPECT_EQ(peer.ask("import", key), "0") << "the key still serves";
  EXPECT_EQ(peer.ask("read", 5), "0 9");
  EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
  EXPECT_EQ(free_bytes(), before + 3 * kPage);
}

TEST_F(AclSharing, OnlyAllowedProcessesImport) {
  Peer friendly, other;
  const std::string key = export_key(allocate(kPage, 4), kPage, ACL_RT_IPC_MEM_EXPORT_FLAG_DEFAULT);
  EXPECT_EQ(friendly.ask("import", key), text(ACL_ERROR_RT_NO_PERMISSION));
  EXPECT_NE(friendly.ask("message").find("does not let process " + std::to_string(friendly.pid())),
            std::string::npos);
  int32_t allowed = friendly.pid();
  ASSERT_EQ(aclrtIpcMemSetImportPid(key.c_str(), &allowed, 1), ACL_SUCCESS);
  EXPECT_EQ(friendly.ask("import", key), "0");
  EXPECT_EQ(friendly.ask("read", 0), "0 4");
  EXPECT_EQ(other.ask("import", key), text(ACL_ERROR_RT_NO_PERMISSION));
  EXPECT_EQ(other.ask("allow", key, other.pid()), text(ACL_ERROR_RT_INVALID_HANDLE))
      << "only the exporter allows";
  EXPECT_EQ(read(import(key)), 4) << "the exporter itself may";
}

TEST_F(AclSharing, AKeyEndsWithItsExportOrItsMemory) {
  Peer peer;
  char* memory = allocate(kPage, 1);
  const std::string first = export_key(memory, kPage), second = export_key(memory, kPage);
  EXPECT_NE(first, second) << "each key is new";
  ASSERT_EQ(aclrtIpcMemClose(first.c_str()), ACL_SUCCESS);
  expect_failure(aclrtIpcMemClose(first.c_str()), ACL_ERROR_RT_INVALID_HANDLE,
                 "exports nothing under that key");
  EXPECT_EQ(peer.ask("import", first), text(ACL_ERROR_RT_INVALID_HANDLE));
  ASSERT_EQ(peer.ask("import", second), "0");
  ASSERT_EQ(aclrtFree(memory), ACL_SUCCESS);
  EXPECT_EQ(peer.ask("read", 0), "0 1") << "what was imported stays";
  Peer late;
  const std::string kept = export_key(allocate(kPage, 1), kPage);  // so that the exporter answers
  EXPECT_EQ(late.ask("import", second), text(ACL_ERROR_RT_INVALID_HANDLE));
}

TEST_F(AclSharing, ImportsOfAKeyAreCounted) {
  Peer peer;
  ASSERT_EQ(peer.ask("allocate", 2 * kPage, 6), "0");
  const std::string key = result(peer.ask("export", 2 * kPage, kAny));
  char* memory = import(key);
  EXPECT_EQ(import(key), memory);
  aclrtPtrAttributes attributes = {};
  ASSERT_EQ(aclrtPointerGetAttributes(memory, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_DEVICE);
  expect_failure(aclrtFree(memory), ACL_ERROR_RT_PARAM_INVALID, "not the start of a live allocation");
  char again[ACL_IPC_HANDLE_SIZE];
  expect_failure(aclrtIpcMemGetExportKey(memory, kPage, again, sizeof(again), kAny),
                 ACL_ERROR_RT_PARAM_INVALID, "shared as such");
  EXPECT_EQ(aclrtIpcMemClose(key.c_str()), ACL_SUCCESS);
  EXPECT_EQ(read(memory + 2 * kPage - 1), 6);
  EXPECT_EQ(aclrtIpcMemClose(key.c_str()), ACL_SUCCESS);
  expect_failure(aclrtMemset(memory, 1, 0, 1), ACL_ERROR_RT_PARAM_INVALID, "lies in no live allocation");
  expect_failure(aclrtIpcMemClose(key.c_str()), ACL_ERROR_RT_INVALID_HANDLE,
                 "nothing is imported by it here");
}

TEST_F(AclSharing, ImportsEndWithTheirDevice) {
  Peer peer;
  ASSERT_EQ(peer.ask("allocate", kPage, 6), "0");
  const std::string key = result(peer.ask("export", kPage, kAny));
  char* memory = import(key);
  ASSERT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  expect_failure(aclrtMemset(memory, 1, 0, 1), ACL_ERROR_RT_PARAM_INVALID, "lies in no live allocation");
  EXPECT_EQ(read(import(key)), 6) << "the exporter does not notice";
}

TEST_F(AclSharing, NothingIsLeftOfAKilledExporter) {
  auto peer = std::make_unique<Peer>();
  ASSERT_EQ(peer->ask("allocate", kPage, 8), "0");
  const std::string key = result(peer->ask("export", kPage, kAny));
  const pid_t child = std::stoi(peer->ask("fork"));
  char* memory = import(key);
  const pid_t pid = peer->pid();
  EXPECT_TRUE(listed_among_sockets(pid));
  peer->kill();
  // The kernel closes the files of a process that was killed soon after its end.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (listed_among_sockets(pid) && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_FALSE(listed_among_sockets(pid)) << "although a fork of it lives";
  EXPECT_EQ(read(memory), 8) << "what was imported stays";
  EXPECT_EQ(aclrtIpcMemClose(key.c_str()), ACL_SUCCESS);
  void* again = nullptr;
  expect_failure(aclrtIpcMemImportByKey(&again, key.c_str(), 0), ACL_ERROR_RT_IPC_ERROR,
                 "process " + std::to_string(pid) + ", which exported it, is gone");
  ::kill(child, SIGKILL);
}

TEST_F(AclSharing, AForkHoldsNoSharedMemory) {
  (void)export_key(allocate(kPage, 1), kPage);
  EXPECT_EQ(status_of_fork([] {
              DIR* folder = opendir("/proc/self/fd");
              int held = 0;
              while (const dirent* entry = readdir(folder)) {
                char target[256] = "";
                if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) > 0 &&
                    std::strstr(target, "memfd:anynpu") != nullptr)
                  ++held;
              }
              char key[ACL_IPC_HANDLE_SIZE];
              const bool refused =
                  aclrtIpcMemGetExportKey(key, 1, key, sizeof(key), 0) == ACL_ERROR_RT_DEV_SETUP_ERROR;
              return held + (refused ? 0 : 100);
            }),
            0);
}

TEST_F(AclSharing, WhatCannotBeExportedIsToldApart) {
  char key[ACL_IPC_HANDLE_SIZE] = "untouched";
  char* memory = allocate(4 * kPage, 1);
  int local = 0;
  const auto attempt = [&](void* address, size_t size, uint64_t flags = kAny) {
    return aclrtIpcMemGetExportKey(address, size, key, sizeof(key), flags);
  };
  expect_failure(aclrtIpcMemGetExportKey(memory, kPage, key, 64, kAny), ACL_ERROR_INVALID_PARAM, "length 64");
  expect_failure(aclrtIpcMemGetExportKey(memory, kPage, nullptr, 65, kAny), ACL_ERROR_INVALID_PARAM,
                 "key is 0");
  expect_failure(attempt(nullptr, kPage), ACL_ERROR_INVALID_PARAM, "devPtr is null");
  expect_failure(attempt(memory, 0), ACL_ERROR_INVALID_PARAM, "size is 0");
  expect_failure(attempt(memory, kPage, 2), ACL_ERROR_INVALID_PARAM, "flags is 2");
  expect_failure(attempt(&local, 4), ACL_ERROR_RT_PARAM_INVALID, "not an address of a device");
  expect_failure(attempt(memory, 5 * kPage), ACL_ERROR_RT_PARAM_INVALID, "1 to 16384 are accepted");
  expect_failure(attempt(memory + 64, kPage), ACL_ERROR_RT_PARAM_INVALID, "would be shared with it");
  expect_failure(attempt(memory + kPage, kPage + 1), ACL_ERROR_RT_PARAM_INVALID, "would be shared with it");
  EXPECT_STREQ(key, "untouched");
  EXPECT_EQ(attempt(memory, 2 * kPage), ACL_SUCCESS);
  EXPECT_EQ(attempt(memory + 2 * kPage, kPage), ACL_SUCCESS);
  expect_failure(attempt(memory, kPage), ACL_ERROR_RT_PARAM_INVALID, "shared already");
  expect_failure(attempt(memory + kPage, 3 * kPage), ACL_ERROR_RT_PARAM_INVALID, "shared already");
  ASSERT_EQ(aclrtFree(memory), ACL_SUCCESS);
  expect_failure(attempt(memory, kPage), ACL_ERROR_RT_PARAM_INVALID, "no live allocation");
}

TEST_F(AclSharing, KeysThatAreNoneAreToldApart) {
  void* memory = &memory;
  void* const untouched = memory;
  int32_t pid = 1;
  const std::string key = export_key(allocate(kPage, 1), kPage);
  std::string guessed = key;
  guessed.back() = guessed.back() == '0' ? '1' : '0';
  expect_failure(aclrtIpcMemImportByKey(&memory, nullptr, 0), ACL_ERROR_INVALID_PARAM, "key is null");
  expect_failure(aclrtIpcMemImportByKey(nullptr, key.c_str(), 0), ACL_ERROR_INVALID_PARAM, "devPtr is null");
  expect_failure(aclrtIpcMemImportByKey(&memory, key.c_str(), 2), ACL_ERROR_INVALID_PARAM, "flags is 2");
  expect_failure(aclrtIpcMemImportByKey(&memory, "anything", 0), ACL_ERROR_RT_PARAM_INVALID,
                 "key 'anything'");
  expect_failure(aclrtIpcMemImportByKey(&memory, guessed.c_str(), 0), ACL_ERROR_RT_INVALID_HANDLE,
                 "exports nothing of that kind under that key");
  expect_failure(aclrtIpcMemSetImportPid(guessed.c_str(), &pid, 1), ACL_ERROR_RT_INVALID_HANDLE,
                 "exports nothing under that key");
  expect_failure(aclrtIpcMemSetImportPid(key.c_str(), nullptr, 1), ACL_ERROR_INVALID_PARAM, "pid is 0");
  for (const size_t count : {size_t{0}, SIZE_MAX})
    expect_failure(aclrtIpcMemSetImportPid(key.c_str(), &pid, count), ACL_ERROR_INVALID_PARAM,
                   "1 to 4194304 processes");
  pid = -1;
  expect_failure(aclrtIpcMemSetImportPid(key.c_str(), &pid, 1), ACL_ERROR_INVALID_PARAM, "pid[0] is -1");
  aclrtIpcEventHandle handle = {};
  aclrtEvent event = nullptr;
  key.copy(handle.reserved, sizeof(handle.reserved));
  expect_failure(aclrtIpcOpenEventHandle(handle, &event), ACL_ERROR_RT_INVALID_HANDLE, "of that kind");
  EXPECT_EQ(memory, untouched);
}

TEST_F(AclSharing, PhysicalMemoryIsMappedInBothProcesses) {
  Peer peer;
  aclrtPhysicalMemProp prop = {};
  prop.memAttr = ACL_HBM_MEM_NORMAL;
  prop.location = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
  aclrtDrvMemHandle handle = nullptr;
  void* address = nullptr;
  ASSERT_EQ(aclrtMallocPhysical(&handle, kPage, &prop, 0), ACL_SUCCESS);
  ASSERT_EQ(aclrtReserveMemAddress(&address, kPage, 0, nullptr, 0), ACL_SUCCESS);
  ASSERT_EQ(aclrtMapMem(address, kPage, 0, handle, 0), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemset(address, kPage, 5, kPage), ACL_SUCCESS);
  uint64_t number = 0;
  ASSERT_EQ(aclrtMemExportToShareableHandle(handle, ACL_MEM_HANDLE_TYPE_NONE, 0, &number), ACL_SUCCESS)
      << message();
  EXPECT_EQ(peer.ask("import-physical", number), text(ACL_ERROR_RT_NO_PERMISSION));
  int32_t pid = peer.pid();
  ASSERT_EQ(aclrtMemSetPidToShareableHandle(number, &pid, 1), ACL_SUCCESS) << message();
  ASSERT_EQ(peer.ask("import-physical", number), "0") << peer.ask("message");
  EXPECT_EQ(peer.ask("read", kPage - 1), "0 5");
  EXPECT_EQ(peer.ask("fill", 6, kPage), "0");
  EXPECT_EQ(read(static_cast<char*>(address)), 6);

  aclrtDrvMemHandle own = nullptr;
  ASSERT_EQ(aclrtMemImportFromShareableHandle(number, 0, &own), ACL_SUCCESS) << message();
  uint64_t again = 0;
  expect_failure(aclrtMemExportToShareableHandle(own, ACL_MEM_HANDLE_TYPE_NONE, 0, &again),
                 ACL_ERROR_RT_PARAM_INVALID, "was imported");
  expect_failure(aclrtMemImportFromShareableHandle(number ^ 1, 0, &own), ACL_ERROR_RT_INVALID_HANDLE,
                 "exports nothing of that kind");
  expect_failure(aclrtMemImportFromShareableHandle(1, 0, &own), ACL_ERROR_RT_IPC_ERROR, "process 0");
  expect_failure(aclrtMemImportFromShareableHandle(number, 99, &own), ACL_ERROR_RT_INVALID_DEVICEID, "99");
  expect_failure(aclrtMemSetPidToShareableHandle(number ^ 1, &pid, 1), ACL_ERROR_RT_INVALID_HANDLE,
                 "exports nothing under that key");
  EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
  EXPECT_EQ(aclrtUnmapMem(address), ACL_SUCCESS);
  Peer late;
  (void)export_key(allocate(kPage, 1), kPage);  // so that this process answers
  EXPECT_EQ(late.ask("import-physical", number), text(ACL_ERROR_RT_INVALID_HANDLE)) << "its memory is gone";
  EXPECT_EQ(peer.ask("read", 0), "0 6");
}

class AclSharedEvent : public AclSharing {
 protected:
  /// An event that the peer makes, as this process opens it.
  static aclrtEvent open_event_of(Peer& peer) {
    const std::string key = result(peer.ask("make-event"));
    aclrtIpcEventHandle handle = {};
    key.copy(handle.reserved, sizeof(handle.reserved));
    aclrtEvent event = nullptr;
    EXPECT_EQ(aclrtIpcOpenEventHandle(handle, &event), ACL_SUCCESS) << message();
    return event;
  }
};

TEST_F(AclSharedEvent, AStreamWaitsForWorkOfAnotherProcess) {
  Peer peer;
  aclrtEvent event = open_event_of(peer);
  aclrtStream stream = make_stream();
  ASSERT_EQ(aclrtStreamWaitEvent(stream, event), ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << "it was never recorded";

  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(peer.ask("hold"), "0");
    ASSERT_EQ(peer.ask("record"), "0");
    std::atomic<bool> ran = false;
    ASSERT_EQ(aclrtStreamWaitEvent(stream, event), ACL_SUCCESS) << message();
    launch(stream, [&] { ran = true; });
    aclrtEventRecordedStatus status = {};
    ASSERT_EQ(aclrtQueryEventStatus(event, &status), ACL_SUCCESS);
    EXPECT_EQ(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    EXPECT_EQ(aclrtSynchronizeStreamWithTimeout(stream, 20), ACL_ERROR_RT_STREAM_SYNC_TIMEOUT);
    EXPECT_FALSE(ran);
    ASSERT_EQ(peer.ask("go"), "0");
    EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << message();
    EXPECT_TRUE(ran);
    EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
    (void)message();
  }
}

TEST_F(AclSharedEvent, EitherProcessRecords) {
  Peer peer;
  aclrtEvent event = make_event(ACL_EVENT_IPC);
  aclrtIpcEventHandle handle = {};
  ASSERT_EQ(aclrtIpcGetEventHandle(event, &handle), ACL_SUCCESS) << message();
  ASSERT_EQ(peer.ask("open-event", std::string(handle.reserved, sizeof(handle.reserved))), "0");
  aclrtStream stream = make_stream();
  {
    Gate gate(stream);
    ASSERT_EQ(aclrtRecordEvent(event, stream), ACL_SUCCESS);
    ASSERT_EQ(peer.ask("wait"), "0");
    EXPECT_EQ(peer.ask("query"), "not done");
  }
  EXPECT_EQ(peer.ask("synchronize"), "0");

  ASSERT_EQ(peer.ask("hold"), "0");
  ASSERT_EQ(peer.ask("record"), "0");
  EXPECT_EQ(aclrtSynchronizeEventWithTimeout(event, 10), ACL_ERROR_RT_EVENT_SYNC_TIMEOUT) << "it moved";
  ASSERT_EQ(peer.ask("go"), "0");
  EXPECT_EQ(aclrtSynchronizeEvent(event), ACL_SUCCESS);
}

TEST_F(AclSharedEvent, TheEndOfItsRecorderIsAnError) {
  Peer peer;
  aclrtEvent event = open_event_of(peer);
  ASSERT_EQ(peer.ask("hold"), "0");
  ASSERT_EQ(peer.ask("record"), "0");
  aclrtStream stream = make_stream();
  ASSERT_EQ(aclrtStreamWaitEvent(stream, event), ACL_SUCCESS);
  const pid_t pid = peer.pid();
  peer.kill();
  expect_failure(aclrtSynchronizeEvent(event), ACL_ERROR_RT_IPC_ERROR,
                 "process " + std::to_string(pid) + " ended before its event was reached");
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << "the stream goes on";
  expect_failure(aclrtIpcOpenEventHandle({}, &event), ACL_ERROR_RT_PARAM_INVALID, "key '");
}

TEST_F(AclSharedEvent, FlagsAreChecked) {
  aclrtEvent event = nullptr;
  aclrtIpcEventHandle handle = {};
  expect_failure(aclrtCreateEventWithFlag(&event, ACL_EVENT_IPC | ACL_EVENT_TIME_LINE),
                 ACL_ERROR_INVALID_PARAM, "ACL_EVENT_TIME_LINE");
  expect_failure(aclrtIpcGetEventHandle(make_event(), &handle), ACL_ERROR_RT_PARAM_INVALID,
                 "made without ACL_EVENT_IPC");
  event = make_event(ACL_EVENT_IPC);
  expect_failure(aclrtIpcGetEventHandle(event, nullptr), ACL_ERROR_INVALID_PARAM, "handle is null");
  expect_failure(aclrtResetEvent(event, nullptr), ACL_ERROR_FEATURE_UNSUPPORTED, "several processes");
  ASSERT_EQ(aclrtIpcGetEventHandle(event, &handle), ACL_SUCCESS);
  aclrtEvent opened = nullptr;
  ASSERT_EQ(aclrtIpcOpenEventHandle(handle, &opened), ACL_SUCCESS) << message();
  expect_failure(aclrtIpcOpenEventHandle(handle, nullptr), ACL_ERROR_INVALID_PARAM, "event is null");
}

}  // namespace
