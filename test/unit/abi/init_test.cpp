#include <cstdio>
#include <fstream>
#include <thread>

#include "abi_test.h"

namespace {

using AclInit = AclTest;

/// Ends whatever an earlier test initialised, and with it the fixture's use of the device.
void finalize_all() {
  while (aclFinalizeReference(nullptr) == ACL_SUCCESS) {
  }
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  (void)aclGetRecentErrMsg();
}

// A process that never initialised: the state starts afresh in each.
TEST(AclInitExit, FinalizingBeforeInitialisingIsAnError) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(std::exit(aclFinalize() == ACL_ERROR_UNINITIALIZE ? 7 : 1), testing::ExitedWithCode(7), "");
}

TEST_F(AclInit, ASecondInitialisationIsToldAndTheFirstStaysIntact) {
  finalize_all();
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  expect_failure(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE, "aclInit");
  void* memory = nullptr;
  EXPECT_EQ(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS) << "ends all references";
  expect_failure(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE, "aclFinalize");
  EXPECT_EQ(aclInit(""), ACL_SUCCESS) << "a process may start again";
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
}

TEST_F(AclInit, ReferencesAreCounted) {
  finalize_all();
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
  uint64_t left = 77;
  EXPECT_EQ(aclFinalizeReference(&left), ACL_SUCCESS);
  EXPECT_EQ(left, 1u);
  EXPECT_EQ(aclFinalizeReference(&left), ACL_SUCCESS);
  EXPECT_EQ(left, 0u);
  EXPECT_EQ(aclFinalizeReference(&left), ACL_ERROR_REPEAT_FINALIZE);
  EXPECT_EQ(left, 0u);
}

TEST_F(AclInit, FinalizingGivesBackWhatTheProcessHolds) {
  finalize_all();
  ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &before, &total), ACL_SUCCESS);
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, 1 << 20, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
  aclrtStream stream = make_stream();
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  int32_t device = 0;
  expect_failure(aclrtGetDevice(&device), ACL_ERROR_RT_CONTEXT_NULL, "reset");
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &after, &total), ACL_SUCCESS);
  EXPECT_EQ(after, before);
  expect_failure(aclrtFree(memory), ACL_ERROR_RT_PARAM_INVALID, "not the start of a live allocation");
  expect_failure(aclrtDestroyStream(stream), ACL_ERROR_RT_INVALID_HANDLE, "destroyed");
}

TEST_F(AclInit, ConfigurationsAreReadFromFilesThatExist) {
  finalize_all();
  expect_failure(aclInit("/nonexistent/acl.json"), ACL_ERROR_INVALID_FILE, "/nonexistent/acl.json");
  expect_failure(aclInit("/"), ACL_ERROR_INVALID_FILE, "configPath '/'");
  const std::string path = testing::TempDir() + "anynpu_acl.json";
  std::ofstream(path) << "{}";
  testing::internal::CaptureStderr();
  EXPECT_EQ(aclInit(path.c_str()), ACL_SUCCESS);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  finalize_all();
  std::ofstream(path) << R"({"dump": {"dump_path": "./"}})";
  testing::internal::CaptureStderr();
  EXPECT_EQ(aclInit(path.c_str()), ACL_SUCCESS);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no effect"), std::string::npos)
      << "settings that do nothing must not pass in silence";
  std::remove(path.c_str());
  finalize_all();
}

TEST_F(AclInit, VersionNameAndSide) {
  int32_t major = 0, minor = 0, patch = -1;
  EXPECT_EQ(aclrtGetVersion(&major, &minor, &patch), ACL_SUCCESS);
  EXPECT_EQ(major, ACL_MAJOR_VERSION);
  EXPECT_EQ(minor, ACL_MINOR_VERSION);
  EXPECT_EQ(patch, ACL_PATCH_VERSION);
  expect_failure(aclrtGetVersion(&major, nullptr, &patch), ACL_ERROR_INVALID_PARAM, "minorVersion is null");
  EXPECT_STREQ(aclrtGetSocName(), "Ascend910B2");
  aclrtRunMode mode = ACL_DEVICE;
  EXPECT_EQ(aclrtGetRunMode(&mode), ACL_SUCCESS);
  EXPECT_EQ(mode, ACL_HOST);
}

TEST_F(AclInit, MessagesNameFunctionArgumentValueAndWhatIsAccepted) {
  void* memory = nullptr;
  EXPECT_EQ(aclrtMalloc(&memory, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(message(),
            "aclrtMalloc failed (100000, ACL_ERROR_INVALID_PARAM): size is 0; 1 or more is accepted");
  EXPECT_EQ(aclGetRecentErrMsg(), nullptr) << "a message is given once";
}

TEST_F(AclInit, MessagesStackUpNewestFirst) {
  (void)aclrtFree(nullptr);
  (void)aclrtMalloc(nullptr, 8, ACL_MEM_MALLOC_HUGE_FIRST);
  const std::string text = message();
  const size_t newer = text.find("aclrtMalloc failed"), older = text.find("aclrtFree failed");
  EXPECT_LT(newer, older);
  EXPECT_NE(older, std::string::npos);
  for (int i = 0; i < 1000; ++i) (void)aclrtFree(nullptr);
  EXPECT_LT(message().size(), 10000u) << "unread messages must not pile up";
}

TEST_F(AclInit, MessagesAndLastErrorsBelongToTheirThread) {
  (void)aclrtFree(nullptr);
  std::thread([] {
    EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
    EXPECT_EQ(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL), ACL_SUCCESS);
  }).join();
  EXPECT_NE(message().find("aclrtFree"), std::string::npos);
}

TEST_F(AclInit, TheLastErrorIsKeptUntilItIsTaken) {
  (void)aclrtGetLastError(ACL_RT_THREAD_LEVEL);
  EXPECT_EQ(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL), ACL_SUCCESS);
  (void)aclrtFree(nullptr);
  aclrtStream stream = make_stream();  // a success in between changes nothing
  EXPECT_EQ(aclrtPeekAtLastError(ACL_RT_THREAD_LEVEL), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtGetLastError(ACL_RT_THREAD_LEVEL), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtGetLastError(ACL_RT_THREAD_LEVEL), ACL_SUCCESS);
  (void)message();
  expect_failure(aclrtPeekAtLastError(static_cast<aclrtLastErrLevel>(3)), ACL_ERROR_INVALID_PARAM,
                 "level is 3");
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

// Options are read once in a process, so each of these runs in one of its own.
TEST(AclInitExit, VerboseWritesALineForEachCall) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("ANYNPU_VERBOSE", "1", 1);
        (void)aclrtSetDevice(0);
        (void)aclrtFree(nullptr);
        std::exit(7);
      },
      testing::ExitedWithCode(7), "us: aclrtSetDevice returned 0\nanynpu: .* us: aclrtFree failed .100000");
}

TEST(AclInitExit, TheProcessorsNameIsAnOption) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("ANYNPU_SOC", "Ascend950PR_9599", 1);
        std::exit(std::string(aclrtGetSocName()) == "Ascend950PR_9599" ? 7 : 1);
      },
      testing::ExitedWithCode(7), "");
}

}  // namespace
