#include "base/disk_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "base/sha256.h"

namespace anynpu {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRoomy = int64_t{1} << 30;

class DiskCaches : public testing::Test {
 protected:
  DiskCaches() {
    std::string name = fs::temp_directory_path() / "anynpu-test-XXXXXX";
    root_ = ::mkdtemp(name.data());
    folder_ = root_ / "cache";
  }
  ~DiskCaches() override { fs::remove_all(root_); }

  fs::path file_of(std::string_view key) const { return folder_ / (hex(sha256(key)) + ".entry"); }

  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static void set_age(const fs::path& path, int seconds) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }

  static pid_t start(const std::function<bool()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body() ? 0 : 1);
    return child;
  }
  static bool succeeds(pid_t child) {
    int status = 0;
    return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  fs::path root_, folder_;
};

TEST_F(DiskCaches, KeepValuesForOtherObjects) {
  const std::string binary("\0\1\n", 3);
  {
    DiskCache cache(folder_, kRoomy);
    EXPECT_EQ(cache.find("a"), std::nullopt);
    cache.store("a", "one");
    cache.store(binary, binary);
    cache.store("", "");
    cache.store("a", "two");
  }
  const DiskCache cache(folder_, kRoomy);
  EXPECT_EQ(cache.find("a"), "two");
  EXPECT_EQ(cache.find(binary), binary);
  EXPECT_EQ(cache.find(""), "");
  EXPECT_EQ(cache.find("b"), std::nullopt);
  EXPECT_EQ(files(), 3u);
}

TEST_F(DiskCaches, AreTheirUsersAlone) {
  DiskCache(folder_, kRoomy).store("a", "one");
  struct stat status;
  ASSERT_EQ(::stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat(file_of("a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);

  fs::create_directory_symlink(folder_, root_ / "link");
  EXPECT_EQ(DiskCache(root_ / "link", kRoomy).find("a"), std::nullopt);
  fs::permissions(folder_, fs::perms(0770));
  EXPECT_EQ(DiskCache(folder_, kRoomy).find("a"), std::nullopt);
  fs::permissions(folder_, fs::perms(0700));
  EXPECT_EQ(DiskCache(folder_, kRoomy).find("a"), "one");
}

TEST_F(DiskCaches, TrustNoFilesOfOthers) {
  DiskCache cache(folder_, kRoomy);
  cache.store("a", "one");
  fs::permissions(file_of("a"), fs::perms(0620));
  EXPECT_EQ(cache.find("a"), std::nullopt);
  fs::permissions(file_of("a"), fs::perms(0600));
  EXPECT_EQ(cache.find("a"), "one");

  fs::rename(file_of("a"), root_ / "elsewhere");
  fs::create_symlink(root_ / "elsewhere", file_of("a"));
  EXPECT_EQ(cache.find("a"), std::nullopt);
  cache.store("a", "two");  // in the link's place, not where it leads
  EXPECT_EQ(cache.find("a"), "two");
  EXPECT_FALSE(fs::is_symlink(file_of("a")));

  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(file_of("a").c_str(), 12345, 12345), 0);
    EXPECT_EQ(cache.find("a"), std::nullopt);
  }
}

TEST_F(DiskCaches, FindNothingInDamagedFiles) {
  DiskCache cache(folder_, kRoomy);
  cache.store("key", "value");
  const std::string whole = bytes_of(file_of("key"));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    write(file_of("key"), damaged);
    EXPECT_EQ(cache.find("key"), std::nullopt) << "byte " << i;
    write(file_of("key"), whole.substr(0, i));
    EXPECT_EQ(cache.find("key"), std::nullopt) << i << " bytes";
  }
  write(file_of("key"), whole + "x");
  EXPECT_EQ(cache.find("key"), std::nullopt);
  cache.store("key", "value");
  EXPECT_EQ(cache.find("key"), "value");
}

TEST_F(DiskCaches, CheckTheWholeKey) {
  DiskCache cache(folder_, kRoomy);
  cache.store("key of an older version", "value");
  fs::copy_file(file_of("key of an older version"), file_of("key"));
  EXPECT_EQ(cache.find("key"), std::nullopt);
}

TEST_F(DiskCaches, RemoveWhatWasNotUsedForLongest) {
  const std::string value(1000, 'x');
  DiskCache cache(folder_, 10 * 1100);
  for (int i = 0; i < 8; ++i) {
    cache.store(std::to_string(i), value);
    set_age(file_of(std::to_string(i)), 1000 - i);
  }
  EXPECT_EQ(files(), 8u);
  EXPECT_EQ(cache.find("0"), value);  // used again
  for (int i = 8; i < 12; ++i) cache.store(std::to_string(i), value);
  EXPECT_LE(files(), 10u);
  EXPECT_GE(files(), 7u);
  EXPECT_EQ(cache.find("0"), value);
  EXPECT_EQ(cache.find("11"), value);
  EXPECT_EQ(cache.find("1"), std::nullopt);
}

TEST_F(DiskCaches, RemoveOnlyTheirOwnFiles) {
  fs::create_directory(folder_);
  write(folder_ / "notes.txt", std::string(5000, 'n'));
  write(folder_ / "0.writing", "left by a process that is gone");
  write(folder_ / "1.writing", "being written");
  set_age(folder_ / "0.writing", 2 * 3600);
  DiskCache(folder_, 100).store("a", "value");
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  EXPECT_FALSE(fs::exists(folder_ / "0.writing"));
  EXPECT_TRUE(fs::exists(folder_ / "1.writing"));
}

TEST_F(DiskCaches, WithoutAFolderFindNothing) {
  for (const char* folder : {"/proc/self/none/cache", "/dev/null/cache", "/dev/null"}) {
    DiskCache cache(folder, kRoomy);
    cache.store("a", "one");
    EXPECT_EQ(cache.find("a"), std::nullopt) << folder;
  }
}

TEST_F(DiskCaches, ReadOnlySurvives) {
  DiskCache(folder_, kRoomy).store("a", "one");
  constexpr uid_t kNobody = 65534;
  const bool root = ::geteuid() == 0;
  for (const fs::path& path : {root_, folder_, file_of("a")})
    ASSERT_TRUE(!root || ::chown(path.c_str(), kNobody, kNobody) == 0);
  fs::permissions(folder_, fs::perms(0500));
  EXPECT_TRUE(succeeds(start([&] {
    if (root && ::setuid(kNobody) != 0) return false;
    DiskCache cache(folder_, kRoomy);
    cache.store("b", "two");
    return cache.find("a") == "one" && cache.find("b") == std::nullopt;
  })));
  ASSERT_TRUE(!root || ::chown(folder_.c_str(), 0, 0) == 0);
  fs::permissions(folder_, fs::perms(0700));
  EXPECT_EQ(files(), 1u);
}

TEST_F(DiskCaches, FullSurvives) {
  EXPECT_TRUE(succeeds(start([&] {
    DiskCache cache(folder_, kRoomy);
    cache.store("a", "one");
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {4096, 4096};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    cache.store("b", std::string(10000, 'x'));  // of which a part is written
    cache.store("a", std::string(10000, 'x'));
    return cache.find("a") == "one" && cache.find("b") == std::nullopt;
  })));
  EXPECT_EQ(files(), 1u);
}

std::string value_for(int key) {
  return std::string(static_cast<size_t>(20000 + key), static_cast<char>('a' + key));
}

TEST_F(DiskCaches, AFullDeviceSurvives) {
  fs::create_directory(folder_);
  fs::permissions(folder_, fs::perms(0700));
  const auto mount_small = [&] {  // seen by this process alone, and gone with it
    return ::unshare(CLONE_NEWNS | (::geteuid() == 0 ? 0 : CLONE_NEWUSER)) == 0 &&
           ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("tmpfs", folder_.c_str(), "tmpfs", 0, "size=64k,mode=0700") == 0;
  };
  if (!succeeds(start(mount_small))) GTEST_SKIP() << "this user may mount nothing";
  EXPECT_TRUE(succeeds(start([&] {
    if (!mount_small()) return false;
    DiskCache cache(folder_, kRoomy);
    for (int key = 0; key < 10; ++key) cache.store(std::to_string(key), value_for(key));
    for (int key = 0; key < 10; ++key)  // five pages each: there is room for three
      if (cache.find(std::to_string(key)) != (key < 3 ? std::optional(value_for(key)) : std::nullopt))
        return false;
    if (files() != 3) return false;
    fs::remove(file_of("0"));
    cache.store("7", value_for(7));
    return cache.find("7") == value_for(7) && cache.find("1") == value_for(1);
  })));
}

TEST_F(DiskCaches, ManyProcessesSurvive) {
  std::vector<pid_t> children;
  for (int process = 0; process < 4; ++process)
    children.push_back(start([&] {
      DiskCache cache(folder_, 200000);  // of which ten values take more: entries come and go
      for (int turn = 0; turn < 300; ++turn) {
        const int key = (turn * 7 + process) % 10;
        if (const auto found = cache.find(std::to_string(key)); found && *found != value_for(key))
          return false;
        cache.store(std::to_string(key), value_for(key));
      }
      return true;
    }));
  for (const pid_t child : children) EXPECT_TRUE(succeeds(child));
  for (const auto& file : fs::directory_iterator(folder_)) EXPECT_EQ(file.path().extension(), ".entry");
}

TEST_F(DiskCaches, AKillWhileWritingSurvives) {
  for (int turn = 0; turn < 20; ++turn) {
    const pid_t child = start([&] {
      DiskCache cache(folder_, kRoomy);
      for (int i = 0;; ++i) cache.store(std::to_string(i % 10), value_for(i % 10));
      return true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + turn % 5));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_FALSE(succeeds(child));
    DiskCache cache(folder_, kRoomy);
    for (int key = 0; key < 10; ++key)
      EXPECT_EQ(cache.find(std::to_string(key)).value_or(value_for(key)), value_for(key));
  }
  DiskCache cache(folder_, kRoomy);
  cache.store("3", value_for(3));
  EXPECT_EQ(cache.find("3"), value_for(3));
}

TEST_F(DiskCaches, AKillInTheMiddleOfAWriteSurvives) {
  DiskCache cache(folder_, kRoomy);
  cache.store("a", "one");
  const pid_t child = start([&] {
    const rlimit no_core = {0, 0}, limit = {4096, 4096};  // where the system kills who writes more
    if (::setrlimit(RLIMIT_CORE, &no_core) != 0 || ::setrlimit(RLIMIT_FSIZE, &limit) != 0) return true;
    cache.store("a", value_for(1));
    return true;
  });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGXFSZ);
  ASSERT_EQ(files(), 2u);
  EXPECT_EQ(cache.find("a"), "one");
  for (const auto& file : fs::directory_iterator(folder_))
    if (file.path().extension() == ".writing") {
      EXPECT_EQ(file.file_size(), 4096u);
      set_age(file.path(), 2 * 3600);
    }
  DiskCache(folder_, kRoomy).store("a", "two");
  EXPECT_EQ(files(), 1u);
  EXPECT_EQ(cache.find("a"), "two");
}

}  // namespace
}  // namespace anynpu
