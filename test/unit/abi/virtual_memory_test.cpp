// Addresses without memory, memory without addresses, and mappings between them.

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "abi_test.h"

namespace {

constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;

class AclVirtualMemory : public AclTest {
 protected:
  static aclrtPhysicalMemProp prop(aclrtMemAttr attr = ACL_HBM_MEM_NORMAL) {
    aclrtPhysicalMemProp made = {};
    made.handleType = ACL_MEM_HANDLE_TYPE_NONE;
    made.allocationType = ACL_MEM_ALLOCATION_TYPE_PINNED;
    made.memAttr = attr;
    made.location = {0, ACL_MEM_LOCATION_TYPE_DEVICE};
    return made;
  }
  static char* reserve(size_t size, uint64_t flags = 0) {
    void* address = nullptr;
    EXPECT_EQ(aclrtReserveMemAddress(&address, size, 0, nullptr, flags), ACL_SUCCESS) << message();
    return static_cast<char*>(address);
  }
  static aclrtDrvMemHandle physical(size_t size) {
    const auto described = prop();
    aclrtDrvMemHandle handle = nullptr;
    EXPECT_EQ(aclrtMallocPhysical(&handle, size, &described, 0), ACL_SUCCESS) << message();
    return handle;
  }
  static void map(void* address, size_t size, aclrtDrvMemHandle handle, size_t offset = 0) {
    ASSERT_EQ(aclrtMapMem(address, size, offset, handle, 0), ACL_SUCCESS) << message();
  }
  static std::vector<uint8_t> read(const void* memory, size_t size) {
    std::vector<uint8_t> bytes(size);
    EXPECT_EQ(aclrtMemcpy(bytes.data(), size, memory, size, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS)
        << message();
    return bytes;
  }
  static void write(void* memory, const std::vector<uint8_t>& bytes) {
    EXPECT_EQ(aclrtMemcpy(memory, bytes.size(), bytes.data(), bytes.size(), ACL_MEMCPY_HOST_TO_DEVICE),
              ACL_SUCCESS)
        << message();
  }
  static size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
    return free;
  }
};

TEST_F(AclVirtualMemory, MemoryIsThereWhereAndWhileItIsMapped) {
  const size_t before = free_bytes();
  char* base = reserve(3 * kPage);
  EXPECT_EQ(free_bytes(), before) << "addresses take no memory";
  expect_failure(aclrtMemset(base, kPage, 1, kPage), ACL_ERROR_RT_PARAM_INVALID,
                 "lies in no live allocation");

  aclrtDrvMemHandle handle = physical(kPage);
  EXPECT_EQ(free_bytes(), before - kPage);
  map(base + kPage, kPage, handle);
  EXPECT_EQ(read(base + kPage, kPage), std::vector<uint8_t>(kPage, 0)) << "memory is zeroed";
  write(base + kPage, std::vector<uint8_t>(kPage, 7));
  aclrtPtrAttributes attributes = {};
  ASSERT_EQ(aclrtPointerGetAttributes(base + kPage + 5, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_DEVICE);
  ASSERT_EQ(aclrtPointerGetAttributes(base, &attributes), ACL_SUCCESS);
  EXPECT_EQ(attributes.location.type, ACL_MEM_LOCATION_TYPE_UNREGISTERED);

  EXPECT_EQ(aclrtUnmapMem(base + kPage), ACL_SUCCESS) << message();
  expect_failure(aclrtMemset(base + kPage, 1, 1, 1), ACL_ERROR_RT_PARAM_INVALID,
                 "lies in no live allocation");
  map(base, kPage, handle);
  EXPECT_EQ(read(base, kPage), std::vector<uint8_t>(kPage, 7)) << "memory keeps what it holds";

  EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
  EXPECT_EQ(read(base, kPage), std::vector<uint8_t>(kPage, 7)) << "a mapping outlives the handle";
  EXPECT_EQ(free_bytes(), before - kPage);
  EXPECT_EQ(aclrtUnmapMem(base), ACL_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  EXPECT_EQ(aclrtReleaseMemAddress(base), ACL_SUCCESS);
}

TEST_F(AclVirtualMemory, RangesSpanMappingsThatFollowEachOther) {
  char* base = reserve(5 * kPage);
  std::vector<aclrtDrvMemHandle> handles;
  for (int i = 0; i < 3; ++i) map(base + i * kPage, kPage, handles.emplace_back(physical(kPage)));
  map(base + 4 * kPage, kPage, handles[0]);  // the same memory at two addresses, after a gap

  std::vector<uint8_t> bytes(3 * kPage);
  std::iota(bytes.begin(), bytes.end(), 3);
  write(base, bytes);
  EXPECT_EQ(read(base, 3 * kPage), bytes);
  EXPECT_EQ(read(base + 4 * kPage, kPage), std::vector<uint8_t>(bytes.begin(), bytes.begin() + kPage));
  expect_failure(aclrtMemset(base, 4 * kPage, 1, 3 * kPage + 1), ACL_ERROR_RT_PARAM_INVALID,
                 "ends after 12288");
  expect_failure(aclrtMemset(base + kPage + 1, 4 * kPage, 1, 2 * kPage), ACL_ERROR_RT_PARAM_INVALID,
                 "ends after 8191");
  EXPECT_EQ(aclrtUnmapMem(base + kPage), ACL_SUCCESS);
  expect_failure(aclrtMemset(base, 2 * kPage, 1, kPage + 1), ACL_ERROR_RT_PARAM_INVALID, "ends after 4096");
}

TEST_F(AclVirtualMemory, PartsOfMemoryAreMapped) {
  char* base = reserve(2 * kPage);
  aclrtDrvMemHandle handle = physical(4 * kPage);
  map(base, kPage, handle, 3 * kPage);
  map(base + kPage, kPage, handle, 2 * kPage);
  write(base, std::vector<uint8_t>(kPage, 3));
  write(base + kPage, std::vector<uint8_t>(kPage, 2));
  char* all = reserve(4 * kPage);
  map(all, 4 * kPage, handle);
  EXPECT_EQ(read(all + kPage, 1), std::vector<uint8_t>{0});
  EXPECT_EQ(read(all + 2 * kPage, 1), std::vector<uint8_t>{2});
  EXPECT_EQ(read(all + 3 * kPage, 1), std::vector<uint8_t>{3});
}

TEST_F(AclVirtualMemory, QueuedWorkKeepsUnmappedMemory) {
  const size_t before = free_bytes();
  char* base = reserve(kPage);
  aclrtDrvMemHandle handle = physical(kPage);
  map(base, kPage, handle);
  void* kept = nullptr;
  ASSERT_EQ(aclrtMallocHost(&kept, kPage), ACL_SUCCESS);
  aclrtStream stream = make_stream();
  Gate gate(stream);
  ASSERT_EQ(aclrtMemsetAsync(base, kPage, 9, kPage, stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtMemcpyAsync(kept, kPage, base, kPage, ACL_MEMCPY_DEVICE_TO_HOST, stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtUnmapMem(base), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
  EXPECT_EQ(free_bytes(), before - kPage) << "the queued work still uses it";
  expect_failure(aclrtMemset(base, 1, 1, 1), ACL_ERROR_RT_PARAM_INVALID, "lies in no live allocation");
  expect_failure(aclrtUnmapMem(base), ACL_ERROR_RT_PARAM_INVALID, "not the start of an allocation");
  EXPECT_EQ(aclrtReleaseMemAddress(base), ACL_SUCCESS) << message();
  expect_failure(aclrtReleaseMemAddress(base), ACL_ERROR_RT_PARAM_INVALID, "no reserved range");
  gate.open();
  ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << message();
  EXPECT_EQ(static_cast<uint8_t*>(kept)[kPage - 1], 9);
  EXPECT_EQ(aclrtFreeHost(kept), ACL_SUCCESS);
}

TEST_F(AclVirtualMemory, MappingAgainWaitsForQueuedWork) {
  char* base = reserve(kPage);
  aclrtDrvMemHandle first = physical(kPage), second = physical(kPage);
  map(base, kPage, first);
  aclrtStream stream = make_stream();
  Gate gate(stream);
  ASSERT_EQ(aclrtMemsetAsync(base, kPage, 1, kPage, stream), ACL_SUCCESS);
  ASSERT_EQ(aclrtUnmapMem(base), ACL_SUCCESS);
  std::thread later([&] { gate.open(); });
  map(base, kPage, second);
  later.join();
  EXPECT_EQ(read(base, 1), std::vector<uint8_t>{0}) << "the fill reached the first memory";
  char* other = reserve(kPage);
  map(other, kPage, first);
  EXPECT_EQ(read(other, 1), std::vector<uint8_t>{1});
}

// What the caching allocator of a framework does: ranges larger than the memory there is, filled by pieces.
TEST_F(AclVirtualMemory, ManyRangesLargerThanTheMemory) {
  size_t free = 0, total = 0;
  ASSERT_EQ(aclrtGetMemInfo(ACL_HBM_MEM, &free, &total), ACL_SUCCESS);
  const size_t end = total / kPage * kPage;
  std::vector<char*> ranges;
  for (int i = 0; i < 12; ++i) {
    ranges.push_back(reserve(total + total / 8, 1));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(ranges.back()) % kHugePage, 0u);
    map(ranges.back() + end, kPage, physical(kPage));
    write(ranges.back() + end, {static_cast<uint8_t>(i)});
  }
  for (int i = 0; i < 12; ++i) EXPECT_EQ(read(ranges[i] + end, 1), std::vector<uint8_t>(1, i));
  EXPECT_EQ(aclrtReleaseMemAddress(reserve(512, 1)), ACL_SUCCESS);
}

TEST_F(AclVirtualMemory, SizesFollowTheKindOfPage) {
  const size_t before = free_bytes();
  const struct {
    aclrtMemAttr attr;
    size_t page;
  } cases[] = {{ACL_HBM_MEM, kPage},
               {ACL_HBM_MEM_NORMAL, kPage},
               {ACL_HBM_MEM_P2P_NORMAL, kPage},
               {ACL_HBM_MEM_HUGE, kHugePage},
               {ACL_HBM_MEM_P2P_HUGE, kHugePage}};
  for (const auto& [attr, page] : cases) {
    auto described = prop(attr);
    size_t least = 0, best = 0;
    ASSERT_EQ(aclrtMemGetAllocationGranularity(&described, ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &least),
              ACL_SUCCESS);
    EXPECT_EQ(least, page);
    ASSERT_EQ(aclrtMemGetAllocationGranularity(&described, ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED, &best),
              ACL_SUCCESS);
    EXPECT_EQ(best, kHugePage);
    aclrtDrvMemHandle handle = nullptr;
    ASSERT_EQ(aclrtMallocPhysical(&handle, 1, &described, 0), ACL_SUCCESS);
    EXPECT_EQ(free_bytes(), before - page) << attr;
    EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
  }
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(AclVirtualMemory, AResetEndsAllOfIt) {
  const size_t before = free_bytes();
  char* base = reserve(kPage);
  aclrtDrvMemHandle handle = physical(kPage);
  map(base, kPage, handle);
  ASSERT_EQ(aclrtResetDeviceForce(0), ACL_SUCCESS) << message();
  ASSERT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
  EXPECT_EQ(free_bytes(), before);
  expect_failure(aclrtFreePhysical(handle), ACL_ERROR_RT_INVALID_HANDLE, "handle (");
  expect_failure(aclrtUnmapMem(base), ACL_ERROR_RT_PARAM_INVALID, "no reserved range");
  expect_failure(aclrtReleaseMemAddress(base), ACL_ERROR_RT_PARAM_INVALID, "no reserved range");
}

TEST_F(AclVirtualMemory, MisuseIsToldApart) {
  void* address = &address;
  void* const untouched = address;
  expect_failure(aclrtReserveMemAddress(nullptr, kPage, 0, nullptr, 0), ACL_ERROR_INVALID_PARAM,
                 "virPtr is null");
  expect_failure(aclrtReserveMemAddress(&address, 0, 0, nullptr, 0), ACL_ERROR_INVALID_PARAM, "size is 0");
  expect_failure(aclrtReserveMemAddress(&address, kPage, 3, nullptr, 0), ACL_ERROR_INVALID_PARAM,
                 "alignment is 3");
  expect_failure(aclrtReserveMemAddress(&address, kPage, 0, &address, 0), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "expectPtr is");
  expect_failure(aclrtReserveMemAddress(&address, kPage, 0, nullptr, 2), ACL_ERROR_INVALID_PARAM,
                 "flags is 2");
  expect_failure(aclrtReserveMemAddress(&address, SIZE_MAX, 0, nullptr, 1), ACL_ERROR_RT_MEMORY_ALLOCATION,
                 "address space");
  EXPECT_EQ(address, untouched) << "a failure writes nothing";

  aclrtDrvMemHandle handle = nullptr;
  auto described = prop();
  expect_failure(aclrtMallocPhysical(nullptr, kPage, &described, 0), ACL_ERROR_INVALID_PARAM,
                 "handle is null");
  expect_failure(aclrtMallocPhysical(&handle, 0, &described, 0), ACL_ERROR_INVALID_PARAM, "size is 0");
  expect_failure(aclrtMallocPhysical(&handle, kPage, nullptr, 0), ACL_ERROR_INVALID_PARAM, "prop is null");
  expect_failure(aclrtMallocPhysical(&handle, kPage, &described, 1), ACL_ERROR_INVALID_PARAM, "flags is 1");
  expect_failure(aclrtMallocPhysical(&handle, SIZE_MAX, &described, 0), ACL_ERROR_RT_MEMORY_ALLOCATION,
                 "out of memory: tried to allocate");
  described.memAttr = ACL_HBM_MEM_HUGE1G;
  expect_failure(aclrtMallocPhysical(&handle, kPage, &described, 0), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "prop->memAttr is 10");
  described = prop();
  described.location = {99, ACL_MEM_LOCATION_TYPE_DEVICE};
  expect_failure(aclrtMallocPhysical(&handle, kPage, &described, 0), ACL_ERROR_RT_INVALID_DEVICEID,
                 "prop->location.id is 99");
  described.location = {0, ACL_MEM_LOCATION_TYPE_HOST};
  expect_failure(aclrtMallocPhysical(&handle, kPage, &described, 0), ACL_ERROR_FEATURE_UNSUPPORTED,
                 "prop->location.type is 0");
  size_t granularity = 0;
  described = prop();
  expect_failure(
      aclrtMemGetAllocationGranularity(&described, ACL_RT_MEM_ALLOC_GRANULARITY_UNDEF, &granularity),
      ACL_ERROR_INVALID_PARAM, "option is 65535");

  char* base = reserve(2 * kPage);
  handle = physical(kPage);
  expect_failure(aclrtMapMem(&address, kPage, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID, "no reserved range");
  expect_failure(aclrtMapMem(base, kPage, 0, base, 0), ACL_ERROR_RT_INVALID_HANDLE, "handle (");
  expect_failure(aclrtMapMem(base + 64, kPage, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID,
                 "multiples of 4096");
  expect_failure(aclrtMapMem(base, 2 * kPage, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID,
                 "physical memory that has 4096");
  expect_failure(aclrtMapMem(base, kPage, kPage, handle, 0), ACL_ERROR_RT_PARAM_INVALID,
                 "physical memory that has 4096");
  expect_failure(aclrtMapMem(base + kPage, 2 * kPage, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID,
                 "1 to 4096 bytes are accepted there");
  expect_failure(aclrtMapMem(base, 0, 0, handle, 0), ACL_ERROR_INVALID_PARAM, "size is 0");
  expect_failure(aclrtMapMem(base, kPage, 0, handle, 1), ACL_ERROR_INVALID_PARAM, "flags is 1");
  map(base, kPage, handle);
  expect_failure(aclrtMapMem(base, kPage, 0, handle, 0), ACL_ERROR_RT_PARAM_INVALID, "is mapped already");
  expect_failure(aclrtFree(base), ACL_ERROR_RT_PARAM_INVALID, "not the start of a live allocation");
  expect_failure(aclrtUnmapMem(base + kPage), ACL_ERROR_RT_PARAM_INVALID, "not the start of an allocation");
  expect_failure(aclrtReleaseMemAddress(base), ACL_ERROR_RT_PARAM_INVALID, "unmap it first");
  expect_failure(aclrtReleaseMemAddress(base + kPage), ACL_ERROR_RT_PARAM_INVALID, "not the start of its");
  EXPECT_EQ(aclrtFreePhysical(handle), ACL_SUCCESS);
  expect_failure(aclrtFreePhysical(handle), ACL_ERROR_RT_INVALID_HANDLE, "handle (");

  void* allocation = nullptr;
  ASSERT_EQ(aclrtMalloc(&allocation, kPage, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
  expect_failure(aclrtUnmapMem(allocation), ACL_ERROR_RT_PARAM_INVALID, "no reserved range");
}

TEST_F(AclVirtualMemory, AForkHasNoneOfIt) {
  char* base = reserve(kPage);
  aclrtDrvMemHandle handle = physical(kPage);
  map(base, kPage, handle);
  EXPECT_EQ(
      status_of_fork([&] {
        void* address = nullptr;
        if (aclrtMapMem(base, kPage, 0, handle, 0) != ACL_ERROR_RT_DEV_SETUP_ERROR) return 1;
        if (aclrtUnmapMem(base) != ACL_ERROR_RT_DEV_SETUP_ERROR) return 2;
        if (aclrtFreePhysical(handle) != ACL_ERROR_RT_DEV_SETUP_ERROR) return 3;
        return aclrtReserveMemAddress(&address, kPage, 0, nullptr, 0) == ACL_ERROR_RT_DEV_SETUP_ERROR ? 0 : 4;
      }),
      0);
  EXPECT_EQ(read(base, 1), std::vector<uint8_t>{0});
}

}  // namespace
