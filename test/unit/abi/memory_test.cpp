#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

class AclMemory : public AclTest {
 protected:
  /// Device memory that holds `bytes`.
  static void* device_copy(const std::vector<uint8_t>& bytes) {
    void* memory = nullptr;
    EXPECT_EQ(aclrtMalloc(&memory, bytes.size(), ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << message();
    EXPECT_EQ(aclrtMemcpy(memory, bytes.size(), bytes.data(), bytes.size(), ACL_MEMCPY_HOST_TO_DEVICE),
              ACL_SUCCESS);
    return memory;
  }
  static std::vector<uint8_t> host_copy(const void* memory, size_t size) {
    std::vector<uint8_t> bytes(size);
    EXPECT_EQ(aclrtMemcpy(bytes.data(), size, memory, size, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS)
        << message();
    return bytes;
  }
  static std::vector<uint8_t> pattern(size_t size, uint8_t first = 1) {
    std::vector<uint8_t> bytes(size);
    std::iota(bytes.begin(), bytes.end(), first);
    return bytes;
  }
  static size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
    return free;
  }
};

TEST_F(AclMemory, EveryKindOfAllocation) {
  struct {
    aclrtMemMallocPolicy policy;
    size_t taken;
  } const cases[] = {
      {ACL_MEM_MALLOC_HUGE_FIRST, 4096},
      {ACL_MEM_MALLOC_NORMAL_ONLY, 4096},
      {ACL_MEM_MALLOC_HUGE_FIRST_P2P, 4096},
      {ACL_MEM_MALLOC_NORMAL_ONLY_P2P, 4096},
      {ACL_MEM_MALLOC_HUGE_ONLY, 2 << 20},
      {ACL_MEM_MALLOC_HUGE_ONLY_P2P, 2 << 20},
      {static_cast<aclrtMemMallocPolicy>(ACL_MEM_MALLOC_HUGE_ONLY | ACL_MEM_TYPE_HIGH_BAND_WIDTH), 2 << 20},
  };
  const size_t before = free_bytes();
  for (const auto allocate : {aclrtMalloc, aclrtMallocAlign32, aclrtMallocCached})
    for (const auto& [policy, taken] : cases) {
      void* memory = nullptr;
      ASSERT_EQ(allocate(&memory, 100, policy), ACL_SUCCESS) << policy;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
      EXPECT_EQ(before - free_bytes(), taken) << policy;
      EXPECT_EQ(aclrtMemset(memory, 100, 7, 100), ACL_SUCCESS);
      EXPECT_EQ(host_copy(memory, 100), std::vector<uint8_t>(100, 7));
      EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
      EXPECT_EQ(free_bytes(), before);
    }
}

TEST_F(AclMemory, BadAllocationsAreToldApart) {
  void* memory = &memory;
  void* const untouched = memory;
  expect_failure(aclrtMalloc(nullptr, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM,
                 "devPtr is null");
  expect_failure(aclrtMalloc(&memory, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM, "size is 0");
  expect_failure(aclrtMalloc(&memory, 8, static_cast<aclrtMemMallocPolicy>(1 << 27)), ACL_ERROR_INVALID_PARAM,
                 "policy is 134217728");
  for (const int policy : {int{ACL_MEM_MALLOC_HUGE1G_ONLY}, int{ACL_MEM_TYPE_LOW_BAND_WIDTH},
                           int{ACL_MEM_ACCESS_USER_SPACE_READONLY}})
    expect_failure(aclrtMalloc(&memory, 8, static_cast<aclrtMemMallocPolicy>(policy)),
                   ACL_ERROR_FEATURE_UNSUPPORTED, "are supported");
  for (const auto policy : {ACL_MEM_MALLOC_HUGE_FIRST, ACL_MEM_MALLOC_HUGE_ONLY})
    for (const size_t size : {SIZE_MAX, SIZE_MAX / 2, size_t{1} << 50})
      expect_failure(aclrtMalloc(&memory, size, policy), ACL_ERROR_RT_MEMORY_ALLOCATION,
                     "out of memory: tried to allocate");
  EXPECT_EQ(memory, untouched) << "a failure writes nothing";
}

TEST_F(AclMemory, OnlyWhatWasAllocatedIsFreed) {
  int local = 0;
  auto* memory = static_cast<char*>(device_copy(pattern(10000)));
  expect_failure(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM, "devPtr is null");
  expect_failure(aclrtFree(&local), ACL_ERROR_RT_PARAM_INVALID, "not an address of a device");
  expect_failure(aclrtFree(memory + 64), ACL_ERROR_RT_PARAM_INVALID, "not the start of a live allocation");
  EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
  expect_failure(aclrtFree(memory), ACL_ERROR_RT_PARAM_INVALID, "not the start of a live allocation");
  expect_failure(aclrtFreeHost(nullptr), ACL_ERROR_INVALID_PARAM, "hostPtr is null");
  expect_failure(aclrtFreeHost(&local), ACL_ERROR_RT_PARAM_INVALID, "pinned");
}

TEST_F(AclMemory, FreedMemoryServesQueuedWorkFirst) {
  constexpr size_t kSize = 4 << 20;
  const size_t before = free_bytes();
  void *memory = nullptr, *pinned = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, kSize, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  ASSERT_EQ(aclrtMallocHost(&pinned, kSize), ACL_SUCCESS);
  aclrtStream stream = make_stream();
  Gate gate(stream);
  ASSERT_EQ(aclrtMemsetAsync(pinned, kSize, 5, kSize, stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpyAsync(memory, kSize, pinned, kSize, ACL_MEMCPY_HOST_TO_DEVICE, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  EXPECT_EQ(free_bytes(), before - kSize);
  expect_failure(aclrtFree(memory), ACL_ERROR_RT_PARAM_INVALID, "not the start of a live allocation");
  expect_failure(aclrtMemsetAsync(memory, kSize, 1, kSize, stream), ACL_ERROR_RT_PARAM_INVALID,
                 "lies in no live allocation");
  expect_failure(aclrtFreeHost(pinned), ACL_ERROR_RT_PARAM_INVALID, "not the start of a pinned allocation");
  gate.open();
  ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << message();
  ASSERT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(AclMemory, AnAllocationWaitsForMemoryThatIsFreed) {
  void *all = nullptr, *again = nullptr;
  const size_t size = free_bytes() / 3 * 2;  // twice does not fit
  ASSERT_EQ(aclrtMalloc(&all, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << message();
  aclrtStream stream = make_stream();
  launch(stream, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  ASSERT_EQ(aclrtMemsetAsync(all, size, 1, 64, stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtFree(all), ACL_SUCCESS);
  EXPECT_EQ(aclrtMalloc(&again, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtFree(again), ACL_SUCCESS);
}

TEST_F(AclMemory, RangesThatOverlapOrLeavePinnedMemoryAreRefused) {
  const auto bytes = pattern(200);
  auto* memory = static_cast<char*>(device_copy(bytes));
  for (const int shift : {1, 99})
    for (const bool down : {false, true})
      expect_failure(aclrtMemcpy(memory + (down ? 0 : shift), 100, memory + (down ? shift : 0), 100,
                                 ACL_MEMCPY_DEVICE_TO_DEVICE),
                     ACL_ERROR_RT_PARAM_INVALID, "overlap: 100 bytes were asked for");
  EXPECT_EQ(host_copy(memory, 200), bytes);
  EXPECT_EQ(aclrtMemcpy(memory, 100, memory, 100, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpy(memory + 100, 100, memory, 100, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
  // Rows of which the second overlaps, and columns side by side.
  expect_failure(aclrtMemcpy2d(memory + 21, 10, memory, 30, 10, 2, ACL_MEMCPY_DEVICE_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "overlap");
  EXPECT_EQ(aclrtMemcpy2d(memory + 10, 20, memory, 20, 10, 5, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);

  void* pinned = nullptr;
  ASSERT_EQ(aclrtMallocHost(&pinned, 150), ACL_SUCCESS);
  expect_failure(aclrtMemcpy(memory, 200, pinned, 151, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID,
                 "its pinned allocation ends after 150");
  expect_failure(aclrtMemset(static_cast<char*>(pinned) + 100, 51, 0, 51), ACL_ERROR_RT_PARAM_INVALID,
                 "its pinned allocation ends after 50");
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
}

TEST_F(AclMemory, PinnedMemory) {
  void* pinned = nullptr;
  aclrtMallocAttribute attribute = {ACL_RT_MEM_ATTR_VA_FLAG, {}};
  attribute.value.vaFlag = 1;
  aclrtMallocConfig config = {&attribute, 1};
  EXPECT_EQ(aclrtMallocHostWithCfg(&pinned, 100, &config), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  EXPECT_EQ(aclrtMallocHostWithCfg(&pinned, 100, nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  attribute.attr = static_cast<aclrtMallocAttrType>(44);
  expect_failure(aclrtMallocHostWithCfg(&pinned, 100, &config), ACL_ERROR_INVALID_PARAM,
                 "cfg->attrs[0].attr is 44");
  config = {nullptr, 2};
  expect_failure(aclrtMallocHostWithCfg(&pinned, 100, &config), ACL_ERROR_INVALID_PARAM,
                 "cfg->attrs is null");
  expect_failure(aclrtMallocHost(&pinned, 0), ACL_ERROR_INVALID_PARAM, "size is 0");
  expect_failure(aclrtMallocHost(nullptr, 4), ACL_ERROR_INVALID_PARAM, "hostPtr is null");
  EXPECT_EQ(aclrtMallocHost(&pinned, 100), ACL_SUCCESS);
  std::memset(pinned, 5, 100);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  expect_failure(aclrtFreeHost(pinned), ACL_ERROR_RT_PARAM_INVALID, "pinned");
}

TEST_F(AclMemory, AddressesAreTold) {
  int local = 0;
  auto* memory = static_cast<char*>(device_copy(pattern(5000)));
  void* pinned = nullptr;
  ASSERT_EQ(aclrtMallocHost(&pinned, 10), ACL_SUCCESS);
  const auto type = [](const void* address) {
    aclrtPtrAttributes attributes = {};
    EXPECT_EQ(aclrtPointerGetAttributes(address, &attributes), ACL_SUCCESS);
    EXPECT_EQ(attributes.pageSize, 4096u);
    EXPECT_EQ(attributes.location.id, 0u);
    return attributes.location.type;
  };
  EXPECT_EQ(type(memory + 4999), ACL_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(type(pinned), ACL_MEM_LOCATION_TYPE_HOST);
  EXPECT_EQ(type(&local), ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  EXPECT_EQ(aclrtFree(memory), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  EXPECT_EQ(type(memory), ACL_MEM_LOCATION_TYPE_UNREGISTERED) << "freed";
  aclrtPtrAttributes attributes = {};
  expect_failure(aclrtPointerGetAttributes(nullptr, &attributes), ACL_ERROR_INVALID_PARAM, "ptr is null");
  expect_failure(aclrtPointerGetAttributes(&local, nullptr), ACL_ERROR_INVALID_PARAM, "attributes is null");
}

TEST_F(AclMemory, CopiesOfEveryKind) {
  for (const size_t size : {size_t{1}, size_t{4097}, (size_t{3} << 20) + 5}) {
    const auto bytes = pattern(size);
    void *first = device_copy(bytes), *second = nullptr;
    ASSERT_EQ(aclrtMalloc(&second, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    for (const auto kind :
         {ACL_MEMCPY_DEVICE_TO_DEVICE, ACL_MEMCPY_INNER_DEVICE_TO_DEVICE, ACL_MEMCPY_DEFAULT}) {
      EXPECT_EQ(aclrtMemset(second, size, 0, size), ACL_SUCCESS);
      EXPECT_EQ(aclrtMemcpy(second, size, first, size, kind), ACL_SUCCESS);
      EXPECT_EQ(host_copy(second, size), bytes);
    }
    std::vector<uint8_t> host(size);
    EXPECT_EQ(aclrtMemcpy(host.data(), size, bytes.data(), size, ACL_MEMCPY_HOST_TO_HOST), ACL_SUCCESS);
    EXPECT_EQ(host, bytes);
    EXPECT_EQ(aclrtFree(first), ACL_SUCCESS);
    EXPECT_EQ(aclrtFree(second), ACL_SUCCESS);
  }
}

TEST_F(AclMemory, CopiesBetweenDevices) {
  uint32_t devices = 0;
  ASSERT_EQ(aclrtGetDeviceCount(&devices), ACL_SUCCESS);
  if (devices < 2) GTEST_SKIP() << "needs two devices";
  const auto bytes = pattern(5000);
  void *here = device_copy(bytes), *there = nullptr;
  ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
  ASSERT_EQ(aclrtMalloc(&there, 5000, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  expect_failure(aclrtMemcpy(there, 5000, here, 5000, ACL_MEMCPY_INTER_DEVICE_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "dst lies on device 1 and src on device 0, but neither");
  ASSERT_EQ(aclrtDeviceEnablePeerAccess(0, 0), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtMemcpy(there, 5000, here, 5000, ACL_MEMCPY_INTER_DEVICE_TO_DEVICE), ACL_SUCCESS)
      << message();
  EXPECT_EQ(host_copy(there, 5000), bytes);
  EXPECT_EQ(aclrtMemset(here, 5000, 0, 5000), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpy(here, 5000, there, 5000, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS) << "and back";
  EXPECT_EQ(host_copy(here, 5000), bytes);
  expect_failure(aclrtMemcpy(there, 5000, here, 5000, ACL_MEMCPY_INNER_DEVICE_TO_DEVICE),
                 ACL_ERROR_INVALID_PARAM, "do not lie on one device");
  ASSERT_EQ(aclrtDeviceDisablePeerAccess(0), ACL_SUCCESS);
  expect_failure(aclrtMemcpy(there, 5000, here, 5000, ACL_MEMCPY_DEFAULT), ACL_ERROR_RT_PARAM_INVALID,
                 "aclrtDeviceEnablePeerAccess");
  ASSERT_EQ(aclrtDeviceEnablePeerAccess(0, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtResetDevice(1), ACL_SUCCESS);
  ASSERT_EQ(aclrtSetDevice(1), ACL_SUCCESS);
  expect_failure(aclrtDeviceDisablePeerAccess(0), ACL_ERROR_RT_PARAM_INVALID, "was not let reach device 0");
  EXPECT_EQ(aclrtResetDevice(1), ACL_SUCCESS);
}

TEST_F(AclMemory, PeersAreOtherDevices) {
  int32_t can = -1;
  const auto last = []() {
    uint32_t devices = 0;
    EXPECT_EQ(aclrtGetDeviceCount(&devices), ACL_SUCCESS);
    return static_cast<int32_t>(devices) - 1;
  }();
  ASSERT_EQ(aclrtDeviceCanAccessPeer(&can, 0, last), ACL_SUCCESS);
  EXPECT_EQ(can, last != 0);
  ASSERT_EQ(aclrtDeviceCanAccessPeer(&can, last, last), ACL_SUCCESS);
  EXPECT_EQ(can, 0);
  expect_failure(aclrtDeviceCanAccessPeer(&can, 0, 99), ACL_ERROR_RT_INVALID_DEVICEID, "peerDeviceId is 99");
  expect_failure(aclrtDeviceCanAccessPeer(nullptr, 0, last), ACL_ERROR_INVALID_PARAM,
                 "canAccessPeer is null");
  expect_failure(aclrtDeviceEnablePeerAccess(0, 0), ACL_ERROR_RT_INVALID_DEVICEID, "the current device");
  expect_failure(aclrtDeviceEnablePeerAccess(last, 1), ACL_ERROR_INVALID_PARAM, "flags is 1");
  expect_failure(aclrtDeviceEnablePeerAccess(-1, 0), ACL_ERROR_RT_INVALID_DEVICEID, "peerDeviceId is -1");
}

TEST_F(AclMemory, RegisteredHostMemoryIsPinnedAndReachableByDevices) {
  constexpr size_t kSize = 3000;
  std::vector<uint8_t> host(kSize, 1);
  void *memory = device_copy(pattern(kSize)), *on_device = nullptr;
  aclrtStream stream = make_stream();
  ASSERT_EQ(aclrtHostRegister(host.data(), kSize, ACL_HOST_REGISTER_MAPPED, &on_device), ACL_SUCCESS)
      << message();
  aclrtPtrAttributes attributes = {};
  ASSERT_EQ(aclrtPointerGetAttributes(host.data() + 7, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_HOST);
  {
    Gate gate(stream);
    EXPECT_EQ(aclrtMemcpyAsync(host.data(), kSize, memory, kSize, ACL_MEMCPY_DEVICE_TO_HOST, stream),
              ACL_SUCCESS);
    EXPECT_EQ(host[5], 1) << "the call does not wait";
  }
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_EQ(host, pattern(kSize));
  EXPECT_EQ(aclrtMemset(on_device, kSize, 9, kSize), ACL_SUCCESS);
  EXPECT_EQ(host, std::vector<uint8_t>(kSize, 9)) << "a device writes the same memory";
  EXPECT_EQ(aclrtMemcpy(on_device, kSize, memory, kSize, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS)
      << message();
  EXPECT_EQ(host, pattern(kSize));

  expect_failure(aclrtHostRegisterV2(host.data() + 10, 10, ACL_HOST_REG_PINNED), ACL_ERROR_RT_PARAM_INVALID,
                 "registered already");
  expect_failure(aclrtFreeHost(host.data()), ACL_ERROR_RT_PARAM_INVALID,
                 "not the start of a pinned allocation");
  expect_failure(aclrtHostUnregister(host.data() + 1), ACL_ERROR_RT_PARAM_INVALID,
                 "not the start of a registered");
  EXPECT_EQ(aclrtHostUnregister(host.data()), ACL_SUCCESS);
  expect_failure(aclrtHostUnregister(host.data()), ACL_ERROR_RT_PARAM_INVALID,
                 "not the start of a registered");
  ASSERT_EQ(aclrtPointerGetAttributes(host.data(), &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_UNREGISTERED);
  expect_failure(aclrtMemcpy(on_device, kSize, memory, kSize, ACL_MEMCPY_DEVICE_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "is host memory");
  for (const uint32_t flag :
       {ACL_HOST_REG_MAPPED, ACL_HOST_REG_PINNED, ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED}) {
    EXPECT_EQ(aclrtHostRegisterV2(host.data(), kSize, flag), ACL_SUCCESS) << message();
    EXPECT_EQ(aclrtHostUnregister(host.data()), ACL_SUCCESS);
  }

  void* pinned = nullptr;
  ASSERT_EQ(aclrtMallocHost(&pinned, kSize), ACL_SUCCESS);
  expect_failure(aclrtHostRegisterV2(pinned, 1, ACL_HOST_REG_PINNED), ACL_ERROR_RT_PARAM_INVALID,
                 "pinned or");
  expect_failure(aclrtHostUnregister(pinned), ACL_ERROR_RT_PARAM_INVALID, "not the start of a registered");
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
  expect_failure(aclrtHostRegisterV2(memory, 1, ACL_HOST_REG_PINNED), ACL_ERROR_RT_PARAM_INVALID,
                 "host memory");
  for (const uint64_t size : {UINT64_MAX, UINT64_MAX / 2, uint64_t{1} << 46})
    expect_failure(aclrtHostRegisterV2(host.data(), size, ACL_HOST_REG_PINNED), ACL_ERROR_RT_PARAM_INVALID,
                   "host memory that is mapped");
  expect_failure(aclrtHostRegisterV2(reinterpret_cast<void*>(8), 8, ACL_HOST_REG_PINNED),
                 ACL_ERROR_RT_PARAM_INVALID, "host memory that is mapped");
  expect_failure(aclrtHostRegisterV2(host.data(), 1, 0), ACL_ERROR_INVALID_PARAM, "flag is 0");
  expect_failure(aclrtHostRegisterV2(nullptr, 1, ACL_HOST_REG_PINNED), ACL_ERROR_INVALID_PARAM,
                 "ptr is null");
  expect_failure(aclrtHostRegisterV2(host.data(), 0, ACL_HOST_REG_PINNED), ACL_ERROR_INVALID_PARAM,
                 "size is 0");
  expect_failure(aclrtHostRegister(host.data(), 1, ACL_HOST_REGISTER_MAPPED, nullptr),
                 ACL_ERROR_INVALID_PARAM, "devPtr is null");
}

TEST_F(AclMemory, BatchesOfCopies) {
  constexpr size_t kSize = 500;
  const aclrtMemLocation host_side = {0, ACL_MEM_LOCATION_TYPE_HOST},
                         device_side = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
  auto first = pattern(kSize), second = pattern(kSize, 50);
  std::vector<uint8_t> back(kSize);
  auto* memory = static_cast<uint8_t*>(device_copy(std::vector<uint8_t>(3 * kSize, 0)));
  aclrtStream stream = make_stream();
  void *dsts[] = {memory, memory + kSize, memory + 2 * kSize, back.data()},
       *srcs[] = {first.data(), second.data(), memory, memory + kSize};
  size_t sizes[] = {kSize, kSize, kSize, kSize}, room[] = {kSize, kSize, kSize, kSize};
  aclrtMemcpyBatchAttr attributes[3] = {};
  attributes[0].dstLoc = device_side;
  attributes[0].srcLoc = host_side;
  attributes[1].dstLoc = attributes[1].srcLoc = device_side;
  attributes[2].dstLoc = host_side;
  attributes[2].srcLoc = device_side;
  size_t starts[] = {0, 2, 3}, failed = 77;
  const auto run = [&](bool asynchronous) {
    return asynchronous
               ? aclrtMemcpyBatchAsync(dsts, room, srcs, sizes, 4, attributes, starts, 3, &failed, stream)
               : aclrtMemcpyBatch(dsts, room, srcs, sizes, 4, attributes, starts, 3, &failed);
  };
  for (const bool asynchronous : {false, true}) {
    EXPECT_EQ(aclrtMemset(memory, 3 * kSize, 0, 3 * kSize), ACL_SUCCESS);
    std::fill(back.begin(), back.end(), 0);
    ASSERT_EQ(run(asynchronous), ACL_SUCCESS) << message();
    EXPECT_EQ(back, second) << "host memory that is not pinned: done on return";
    EXPECT_EQ(host_copy(memory, kSize), first);
    EXPECT_EQ(host_copy(memory + 2 * kSize, kSize), first) << "in order";
    EXPECT_EQ(failed, 77u);
  }
  EXPECT_EQ(aclrtMemset(memory, 3 * kSize, 0, 3 * kSize), ACL_SUCCESS);
  for (const bool asynchronous : {false, true}) {
    room[2] = kSize - 1;
    expect_failure(run(asynchronous), ACL_ERROR_INVALID_PARAM, "destMax[2] is 499");
    EXPECT_EQ(failed, 2u);
    room[2] = kSize;
    starts[2] = 2;
    expect_failure(run(asynchronous), ACL_ERROR_INVALID_PARAM, "attrsIndexes[2] is 2");
    EXPECT_EQ(failed, SIZE_MAX);
    starts[2] = 3;
    attributes[1].srcLoc = host_side;
    expect_failure(run(asynchronous), ACL_ERROR_RT_PARAM_INVALID, "srcs[2] (");
    EXPECT_EQ(failed, 2u);
    attributes[1].srcLoc = {1, ACL_MEM_LOCATION_TYPE_DEVICE};
    expect_failure(run(asynchronous), ACL_ERROR_RT_PARAM_INVALID, "but its attribute says device 1");
    attributes[1].srcLoc = {0, ACL_MEM_LOCATION_TYPE_UNREGISTERED};
    expect_failure(run(asynchronous), ACL_ERROR_INVALID_PARAM, "srcLoc.type for copy 2 is 2");
    attributes[1].srcLoc = device_side;
  }
  EXPECT_EQ(host_copy(memory, 3 * kSize), std::vector<uint8_t>(3 * kSize, 0)) << "nothing was copied";
  expect_failure(aclrtMemcpyBatch(dsts, room, srcs, sizes, 0, attributes, starts, 1, &failed),
                 ACL_ERROR_INVALID_PARAM, "numBatches is 0");
  expect_failure(aclrtMemcpyBatch(dsts, room, srcs, sizes, 4, attributes, starts, 0, &failed),
                 ACL_ERROR_INVALID_PARAM, "numAttrs is 0");
  expect_failure(aclrtMemcpyBatch(dsts, nullptr, srcs, sizes, 4, attributes, starts, 3, nullptr),
                 ACL_ERROR_INVALID_PARAM, "destMax is null");
}

TEST_F(AclMemory, CachesOfCoherentMemory) {
  auto* memory = static_cast<char*>(device_copy(pattern(5000)));
  int local = 0;
  for (const auto operation : {aclrtMemFlush, aclrtMemInvalidate}) {
    EXPECT_EQ(operation(memory, 5000), ACL_SUCCESS) << message();
    EXPECT_EQ(host_copy(memory, 5000), pattern(5000));
    expect_failure(operation(memory, 9000), ACL_ERROR_RT_PARAM_INVALID, "ends after 8192");
    expect_failure(operation(&local, 4), ACL_ERROR_RT_PARAM_INVALID, "is host memory");
    expect_failure(operation(memory, 0), ACL_ERROR_INVALID_PARAM, "size is 0");
  }
  aclrtStream stream = make_stream();
  for (const auto type :
       {ACL_RT_CMO_TYPE_PREFETCH, ACL_RT_CMO_TYPE_WRITEBACK, ACL_RT_CMO_TYPE_INVALID, ACL_RT_CMO_TYPE_FLUSH})
    EXPECT_EQ(aclrtCmoAsync(memory, 5000, type, stream), ACL_SUCCESS) << message();
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_EQ(host_copy(memory, 5000), pattern(5000));
  expect_failure(aclrtCmoAsync(memory, 5000, static_cast<aclrtCmoType>(4), stream), ACL_ERROR_INVALID_PARAM,
                 "cmoType is 4");
  expect_failure(aclrtCmoAsync(memory, 9000, ACL_RT_CMO_TYPE_FLUSH, stream), ACL_ERROR_RT_PARAM_INVALID,
                 "src (");
}

TEST_F(AclMemory, KindsAndBoundsOfCopiesAreChecked) {
  const auto bytes = pattern(64);
  std::vector<uint8_t> host(64, 9);
  void* memory = device_copy(bytes);
  const auto copy = [&](void* to, size_t room, const void* from, size_t count, int kind) {
    return aclrtMemcpy(to, room, from, count, static_cast<aclrtMemcpyKind>(kind));
  };
  expect_failure(copy(host.data(), 2, memory, 4, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_INVALID_PARAM,
                 "count is 4, but destMax is 2");
  expect_failure(copy(memory, 64, host.data(), 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_RT_PARAM_INVALID,
                 "dst (");
  expect_failure(copy(host.data(), 64, host.data(), 64, ACL_MEMCPY_DEVICE_TO_HOST),
                 ACL_ERROR_RT_PARAM_INVALID, "is host memory, but the kind is device to host");
  expect_failure(copy(memory, 64, memory, 64, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_RT_PARAM_INVALID,
                 "src (");
  expect_failure(copy(memory, 1 << 20, host.data(), 1 << 20, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "ends after 4096");
  expect_failure(copy(nullptr, 64, memory, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_INVALID_PARAM,
                 "dst is null");
  expect_failure(copy(host.data(), 64, nullptr, 64, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_INVALID_PARAM,
                 "src is null");
  expect_failure(copy(host.data(), 64, memory, 64, 99), ACL_ERROR_INVALID_PARAM, "kind is 99");
  expect_failure(copy(memory, 64, host.data(), 64, ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE),
                 ACL_ERROR_FEATURE_UNSUPPORTED, "ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE");
  expect_failure(copy(memory, 64, memory, 64, ACL_MEMCPY_INTER_DEVICE_TO_DEVICE), ACL_ERROR_INVALID_PARAM,
                 "lie on one device");
  EXPECT_EQ(host, std::vector<uint8_t>(64, 9)) << "a refused copy copies nothing";
  EXPECT_EQ(host_copy(memory, 64), bytes);
  EXPECT_EQ(copy(nullptr, 0, nullptr, 0, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS) << "nothing to copy";
  expect_failure(aclrtMemset(memory, 4, 0, 8), ACL_ERROR_INVALID_PARAM, "count is 8, but maxCount is 4");
  expect_failure(aclrtMemset(memory, 8000, 0, 8000), ACL_ERROR_RT_PARAM_INVALID, "devPtr (");
  expect_failure(aclrtMemset(nullptr, 8, 0, 8), ACL_ERROR_INVALID_PARAM, "devPtr is null");
}

TEST_F(AclMemory, AsynchronousCopiesFollowTheOrderOfTheStream) {
  constexpr size_t kSize = 3000;
  void *memory = device_copy(pattern(kSize)), *pinned = nullptr;
  ASSERT_EQ(aclrtMallocHost(&pinned, kSize), ACL_SUCCESS);
  std::memset(pinned, 0, kSize);
  aclrtStream stream = make_stream();
  {
    Gate gate(stream);
    EXPECT_EQ(aclrtMemsetAsync(memory, kSize, 0x1234567, kSize, stream), ACL_SUCCESS);
    EXPECT_EQ(aclrtMemcpyAsync(pinned, kSize, memory, kSize, ACL_MEMCPY_DEVICE_TO_HOST, stream), ACL_SUCCESS);
    EXPECT_EQ(static_cast<uint8_t*>(pinned)[kSize - 1], 0) << "pinned memory: the call does not wait";
  }
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_EQ(std::memcmp(pinned, std::vector<uint8_t>(kSize, 0x67).data(), kSize), 0)
      << "the lowest byte counts";
  EXPECT_EQ(aclrtFreeHost(pinned), ACL_SUCCESS);
}

TEST_F(AclMemory, CopiesOfPageableMemoryAreDoneWhenTheCallReturns) {
  constexpr size_t kSize = 3000;
  const auto bytes = pattern(kSize);
  auto source = bytes;
  void* memory = device_copy(pattern(kSize, 77));
  aclrtStream stream = make_stream();
  for (const auto copy : {aclrtMemcpyAsync, aclrtMemcpyAsyncWithCondition}) {
    Gate gate(stream);
    std::thread later([&] { gate.open(); });
    EXPECT_EQ(copy(memory, kSize, source.data(), kSize, ACL_MEMCPY_HOST_TO_DEVICE, stream), ACL_SUCCESS);
    std::fill(source.begin(), source.end(), 0);  // the caller's again
    EXPECT_EQ(copy(source.data(), kSize, memory, kSize, ACL_MEMCPY_DEVICE_TO_HOST, stream), ACL_SUCCESS);
    EXPECT_EQ(source, bytes) << "without a synchronisation";
    later.join();
  }
  expect_failure(aclrtMemcpyAsync(source.data(), kSize, bytes.data(), kSize, ACL_MEMCPY_HOST_TO_HOST, stream),
                 ACL_ERROR_RT_FEATURE_NOT_SUPPORT, "ACL_MEMCPY_HOST_TO_HOST");
}

TEST_F(AclMemory, SynchronousCopiesDoNotWaitForStreams) {
  const auto bytes = pattern(100);
  void* memory = device_copy(bytes);
  aclrtStream stream = make_stream();
  Gate gate(stream);
  EXPECT_EQ(host_copy(memory, 100), bytes) << "while a stream is held";
}

TEST_F(AclMemory, CopiesOfRows) {
  // 3 rows of 5 bytes from a pitch of 8 to one of 7; what lies between the rows stays.
  const auto bytes = pattern(24);
  void* memory = device_copy(std::vector<uint8_t>(21, 0));
  std::vector<uint8_t> expected(21, 0);
  for (size_t row = 0; row < 3; ++row)
    std::copy_n(bytes.begin() + static_cast<ptrdiff_t>(row * 8), 5,
                expected.begin() + static_cast<ptrdiff_t>(row * 7));
  EXPECT_EQ(aclrtMemcpy2d(memory, 7, bytes.data(), 8, 5, 3, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  EXPECT_EQ(host_copy(memory, 21), expected);
  EXPECT_EQ(aclrtMemset(memory, 21, 0, 21), ACL_SUCCESS);
  aclrtStream stream = make_stream();
  EXPECT_EQ(aclrtMemcpy2dAsync(memory, 7, bytes.data(), 8, 5, 3, ACL_MEMCPY_HOST_TO_DEVICE, stream),
            ACL_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  EXPECT_EQ(host_copy(memory, 21), expected);

  expect_failure(aclrtMemcpy2d(memory, 4, bytes.data(), 8, 5, 3, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_INVALID_PARAM, "width is 5, but dpitch is 4");
  expect_failure(aclrtMemcpy2d(memory, 4096, bytes.data(), 8, 5, 3, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_RT_PARAM_INVALID, "dst (");
  expect_failure(aclrtMemcpy2d(expected.data(), 7, memory, 4096, 5, 3, ACL_MEMCPY_DEVICE_TO_HOST),
                 ACL_ERROR_RT_PARAM_INVALID,
                 "8197 bytes were asked for, but its allocation on device 0 ends after");
  expect_failure(aclrtMemcpy2d(memory, 7, bytes.data(), 8, 5, SIZE_MAX / 2, ACL_MEMCPY_HOST_TO_DEVICE),
                 ACL_ERROR_INVALID_PARAM, "height is");
  EXPECT_EQ(aclrtMemcpy2d(memory, 7, bytes.data(), 8, 5, 0, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS)
      << "no rows";
}

}  // namespace
