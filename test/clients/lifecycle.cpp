// Prints the codes that a program meets when it starts, shares, misuses and ends AscendCL, one "name code" a
// line; test_acl.py holds them to what is published.

#include <acl/acl.h>

#include <cstdio>
#include <cstring>
#include <thread>

namespace {

void print(const char* name, int value) { std::printf("%s %d\n", name, value); }

/// What a thread that set no device, or device 0, gets when it allocates.
aclError allocate_in_thread(bool set_device) {
  aclError status = ACL_SUCCESS;
  std::thread([&] {
    if (set_device) status = aclrtSetDevice(0);
    void* memory = nullptr;
    if (status == ACL_SUCCESS) status = aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST);
    if (status == ACL_SUCCESS) status = aclrtFree(memory);
    if (set_device) (void)aclrtResetDevice(0);
  }).join();
  return status;
}

void copies() {
  char source[4] = {1, 2, 3, 4}, back[4] = {};
  void* memory = nullptr;
  print("malloc", aclrtMalloc(&memory, 4, ACL_MEM_MALLOC_HUGE_FIRST));
  print("upload", aclrtMemcpy(memory, 4, source, 4, ACL_MEMCPY_HOST_TO_DEVICE));
  print("too_small", aclrtMemcpy(back, 2, memory, 4, ACL_MEMCPY_DEVICE_TO_HOST));
  print("untouched", back[0] == 0);
  print("download", aclrtMemcpy(back, 4, memory, 4, ACL_MEMCPY_DEVICE_TO_HOST));
  print("same", std::memcmp(source, back, 4) == 0);
  print("free", aclrtFree(memory));
  print("free_again", aclrtFree(memory));
  print("free_null", aclrtFree(nullptr));
}

}  // namespace

int main() {
  uint32_t devices = 0;
  print("count_before_init", aclrtGetDeviceCount(&devices));
  print("init", aclInit(nullptr));
  print("init_again", aclInit(nullptr));
  print("no_context", allocate_in_thread(false));
  print("own_context", allocate_in_thread(true));
  print("bad_device", aclrtSetDevice(static_cast<int32_t>(devices)));
  print("set_device", aclrtSetDevice(0));
  copies();
  print("reset_device", aclrtResetDevice(0));
  print("finalize", aclFinalize());
  print("finalize_again", aclFinalize());
  return 0;
}
