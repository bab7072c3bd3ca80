// A program as users of AscendCL write it: two streams work through a file of blocks, each of which is copied
// to the device, squared by a function of the host, and copied back, while the next one is on its way.

#include <acl/acl.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t kBlocks = 12, kPerBlock = 1000, kBlockBytes = kPerBlock * sizeof(float);

void check(aclError status, const char* what) {
  if (status == ACL_SUCCESS) return;
  const char* message = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s: %d, %s\n", what, status, message != nullptr ? message : "no message");
  std::exit(1);
}
#define CHECK(call) check(call, #call)

struct Slot {
  aclrtStream stream;
  aclrtEvent done;
  float *input, *output;  // pinned
  float* device;
};

void square(void* values) {
  for (size_t i = 0; i < kPerBlock; ++i) static_cast<float*>(values)[i] *= static_cast<float*>(values)[i];
}

Slot make_slot() {
  Slot slot = {};
  void* memory[3] = {};
  CHECK(aclrtCreateStream(&slot.stream));
  CHECK(aclrtCreateEventWithFlag(&slot.done, ACL_EVENT_SYNC));
  CHECK(aclrtMallocHost(&memory[0], kBlockBytes));
  CHECK(aclrtMallocHost(&memory[1], kBlockBytes));
  CHECK(aclrtMalloc(&memory[2], kBlockBytes, ACL_MEM_MALLOC_HUGE_FIRST));
  slot.input = static_cast<float*>(memory[0]);
  slot.output = static_cast<float*>(memory[1]);
  slot.device = static_cast<float*>(memory[2]);
  return slot;
}

void destroy(const Slot& slot) {
  CHECK(aclrtFree(slot.device));
  CHECK(aclrtFreeHost(slot.input));
  CHECK(aclrtFreeHost(slot.output));
  CHECK(aclrtDestroyEvent(slot.done));
  CHECK(aclrtDestroyStream(slot.stream));
}

void send(const Slot& slot, const float* block) {
  for (size_t i = 0; i < kPerBlock; ++i) slot.input[i] = block[i];
  CHECK(aclrtMemcpyAsync(slot.device, kBlockBytes, slot.input, kBlockBytes, ACL_MEMCPY_HOST_TO_DEVICE,
                         slot.stream));
  CHECK(aclrtLaunchHostFunc(slot.stream, square, slot.device));
  CHECK(aclrtMemcpyAsync(slot.output, kBlockBytes, slot.device, kBlockBytes, ACL_MEMCPY_DEVICE_TO_HOST,
                         slot.stream));
  CHECK(aclrtRecordEvent(slot.done, slot.stream));
}

void receive(const Slot& slot, float* block) {
  CHECK(aclrtSynchronizeEvent(slot.done));
  for (size_t i = 0; i < kPerBlock; ++i) block[i] = slot.output[i];
}

}  // namespace

int main() {
  CHECK(aclInit(nullptr));
  CHECK(aclrtSetDevice(0));
  const Slot slots[2] = {make_slot(), make_slot()};
  std::vector<float> input(kBlocks * kPerBlock), output(input.size());
  for (size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>(i % 2048);
  for (size_t block = 0; block <= kBlocks; ++block) {
    if (block < kBlocks) send(slots[block % 2], &input[block * kPerBlock]);
    if (block > 0) receive(slots[(block - 1) % 2], &output[(block - 1) * kPerBlock]);
  }
  for (const Slot& slot : slots) destroy(slot);
  CHECK(aclrtResetDevice(0));
  CHECK(aclFinalize());
  size_t wrong = 0;
  double sum = 0;
  for (size_t i = 0; i < input.size(); ++i) {
    wrong += output[i] != input[i] * input[i];
    sum += output[i];
  }
  std::printf("%zu wrong, sum %.0f\n", wrong, sum);
  return wrong == 0 ? 0 : 1;
}
