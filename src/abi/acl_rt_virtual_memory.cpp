// Virtual memory of acl_rt.h: addresses without memory, memory without addresses, and mappings between them.

#include <algorithm>

#include "abi/call.h"
#include "abi/handle.h"
#include "acl/acl.h"
#include "runtime/address_range.h"
#include "runtime/device.h"

using namespace anynpu;

namespace {

constexpr size_t kMostAlignment = size_t{1} << 30;

void check_no_flags(uint64_t flags) {
  abi::check(flags == 0, ACL_ERROR_INVALID_PARAM, "flags is ", flags, "; 0 is accepted");
}

/// The page of the memory that `prop` describes: what its size is rounded up to.
size_t page_of(const aclrtPhysicalMemProp* prop) {
  abi::check(prop != nullptr, ACL_ERROR_INVALID_PARAM, "prop is null; a description of memory is accepted");
  abi::check(prop->handleType == ACL_MEM_HANDLE_TYPE_NONE, ACL_ERROR_INVALID_PARAM, "prop->handleType is ",
             prop->handleType, "; ACL_MEM_HANDLE_TYPE_NONE is accepted");
  abi::check(prop->allocationType == ACL_MEM_ALLOCATION_TYPE_PINNED, ACL_ERROR_INVALID_PARAM,
             "prop->allocationType is ", prop->allocationType,
             "; ACL_MEM_ALLOCATION_TYPE_PINNED is accepted");
  abi::check(prop->location.type == ACL_MEM_LOCATION_TYPE_DEVICE, ACL_ERROR_FEATURE_UNSUPPORTED,
             "prop->location.type is ", prop->location.type, "; ACL_MEM_LOCATION_TYPE_DEVICE is supported");
  require(prop->location.id < static_cast<uint32_t>(device_count()), ErrorCode::kInvalidDevice,
          "prop->location.id is ", prop->location.id, "; 0 to ", device_count() - 1, " are accepted");
  switch (prop->memAttr) {
    case ACL_HBM_MEM:
    case ACL_HBM_MEM_NORMAL:
    case ACL_HBM_MEM_P2P_NORMAL:
      return Arena::kPage;
    case ACL_HBM_MEM_HUGE:
    case ACL_HBM_MEM_P2P_HUGE:
      return Arena::kHugePage;
    default:
      abi::fail(ACL_ERROR_FEATURE_UNSUPPORTED, "prop->memAttr is ", prop->memAttr,
                "; ACL_HBM_MEM, its HUGE and NORMAL forms and their P2P forms are supported");
  }
}

}  // namespace

extern "C" {

aclError aclrtReserveMemAddress(void** virPtr, size_t size, size_t alignment, void* expectPtr,
                                uint64_t flags) {
  return abi::call("aclrtReserveMemAddress", [&] {
    void*& address = abi::out(virPtr, "virPtr");
    abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
    abi::check((alignment & (alignment - 1)) == 0 && alignment <= kMostAlignment, ACL_ERROR_INVALID_PARAM,
               "alignment is ", alignment, "; 0 (as pages are) and powers of two to ", kMostAlignment,
               " are accepted");
    abi::check(expectPtr == nullptr, ACL_ERROR_FEATURE_UNSUPPORTED, "expectPtr is ", expectPtr,
               "; null (any address) is supported");
    abi::check(flags <= 1, ACL_ERROR_INVALID_PARAM, "flags is ", flags,
               "; 0 (normal pages) and 1 (huge pages) are accepted");
    const size_t page = flags == 0 ? Arena::kPage : Arena::kHugePage;
    const size_t rounded = size <= SIZE_MAX - page ? (size + page - 1) / page * page : size / page * page;
    address = Context::current()->reserve(rounded, std::max(alignment, page));
  });
}

aclError aclrtReleaseMemAddress(void* virPtr) {
  return abi::call("aclrtReleaseMemAddress", [&] {
    abi::check(virPtr != nullptr, ACL_ERROR_INVALID_PARAM,
               "virPtr is null; what aclrtReserveMemAddress gave is accepted");
    Context::release_range(virPtr);
  });
}

aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp* prop,
                             uint64_t flags) {
  return abi::call("aclrtMallocPhysical", [&] {
    aclrtDrvMemHandle& place = abi::out(handle, "handle");
    abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
    check_no_flags(flags);
    const size_t page = page_of(prop);
    Device& device = Device::get(static_cast<int>(prop->location.id));
    place = new_handle(
        Device::with_freed_memory([&] { return PhysicalMemory::allocate(device.index(), size, page); }));
  });
}

aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  return abi::call("aclrtFreePhysical", [&] {
    Device::require_usable();
    abi::taken<PhysicalMemory>(handle, "handle");
  });
}

aclError aclrtMapMem(void* virPtr, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t flags) {
  return abi::call("aclrtMapMem", [&] {
    abi::check(virPtr != nullptr, ACL_ERROR_INVALID_PARAM, "virPtr is null; a reserved address is accepted");
    abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
    check_no_flags(flags);
    const auto memory = abi::handle<PhysicalMemory>(handle, "handle");
    Context::range_of(virPtr)->map(virPtr, size, memory, offset);
  });
}

aclError aclrtUnmapMem(void* virPtr) {
  return abi::call("aclrtUnmapMem", [&] {
    abi::check(virPtr != nullptr, ACL_ERROR_INVALID_PARAM,
               "virPtr is null; the start of a mapping of aclrtMapMem is accepted");
    Context::range_of(virPtr)->unmap(virPtr);
  });
}

aclError aclrtMemGetAllocationGranularity(aclrtPhysicalMemProp* prop, aclrtMemGranularityOptions option,
                                          size_t* granularity) {
  return abi::call("aclrtMemGetAllocationGranularity", [&] {
    size_t& place = abi::out(granularity, "granularity");
    abi::check(
        option == ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM || option == ACL_RT_MEM_ALLOC_GRANULARITY_RECOMMENDED,
        ACL_ERROR_INVALID_PARAM, "option is ", option,
        "; ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM and _RECOMMENDED are accepted");
    const size_t page = page_of(prop);
    place = option == ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM ? page : Arena::kHugePage;
  });
}

}  // extern "C"
