// Memory and copies of acl_rt.h.

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>

#include "abi/call.h"
#include "abi/handle.h"
#include "acl/acl.h"
#include "runtime/arena.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/running.h"

using namespace anynpu;

namespace {

/// The unit that sizes are rounded up to under a policy for pages. All memory serves all devices, so that the
/// policies for access between devices are those without it.
size_t unit_of(aclrtMemMallocPolicy policy) {
  switch (policy & ~ACL_MEM_TYPE_HIGH_BAND_WIDTH) {
    case ACL_MEM_MALLOC_HUGE_FIRST:
    case ACL_MEM_MALLOC_HUGE_FIRST_P2P:
    case ACL_MEM_MALLOC_NORMAL_ONLY:
    case ACL_MEM_MALLOC_NORMAL_ONLY_P2P:
      return 1;
    case ACL_MEM_MALLOC_HUGE_ONLY:
    case ACL_MEM_MALLOC_HUGE_ONLY_P2P:
      return Arena::kHugePage;
    default:
      break;
  }
  constexpr int kPublished = ACL_MEM_MALLOC_HUGE1G_ONLY_P2P | ACL_MEM_TYPE_LOW_BAND_WIDTH |
                             ACL_MEM_TYPE_HIGH_BAND_WIDTH | ACL_MEM_ACCESS_USER_SPACE_READONLY;
  abi::fail((policy & ~kPublished) == 0 ? ACL_ERROR_FEATURE_UNSUPPORTED : ACL_ERROR_INVALID_PARAM,
            "policy is ", policy,
            "; the policies HUGE_FIRST, HUGE_ONLY and NORMAL_ONLY, their P2P forms and "
            "ACL_MEM_TYPE_HIGH_BAND_WIDTH are supported");
}

void allocate(void** place, size_t size, aclrtMemMallocPolicy policy) {
  void*& address = abi::out(place, "devPtr");
  abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
  const size_t unit = unit_of(policy);
  const size_t rounded = size <= SIZE_MAX - unit ? (size + unit - 1) / unit * unit : size;
  address = Context::current()->allocate(rounded);
}

void allocate_host(void** place, uint64_t size, const char* argument) {
  void*& address = abi::out(place, argument);
  abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
  (void)Context::current();
  address = allocate_pinned(size);
}

void check_room(const char* room_argument, size_t room, size_t count) {
  abi::check(count <= room, ACL_ERROR_INVALID_PARAM, "count is ", count, ", but ", room_argument, " is ",
             room);
}

void check_not_null(const char* argument, const void* address, size_t bytes) {
  abi::check(address != nullptr || bytes == 0, ACL_ERROR_INVALID_PARAM, argument, " is null; ", bytes,
             " bytes were asked for");
}

/// `kind` as the runtime knows it; copies within and between devices must be what they say.
CopyKind copy_kind(aclrtMemcpyKind kind, const void* to, const void* from) {
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_HOST:
      return CopyKind::kHostToHost;
    case ACL_MEMCPY_HOST_TO_DEVICE:
      return CopyKind::kHostToDevice;
    case ACL_MEMCPY_DEVICE_TO_HOST:
      return CopyKind::kDeviceToHost;
    case ACL_MEMCPY_DEVICE_TO_DEVICE:
      return CopyKind::kDeviceToDevice;
    case ACL_MEMCPY_DEFAULT:
      return CopyKind::kDefault;
    case ACL_MEMCPY_INNER_DEVICE_TO_DEVICE:
    case ACL_MEMCPY_INTER_DEVICE_TO_DEVICE: {
      const bool one_device = Device::of(to) == Device::of(from);
      abi::check(one_device == (kind == ACL_MEMCPY_INNER_DEVICE_TO_DEVICE), ACL_ERROR_INVALID_PARAM,
                 "dst and src ", one_device ? "lie on one device" : "do not lie on one device",
                 ", but kind is ", kind);
      return CopyKind::kDeviceToDevice;
    }
    case ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE:
      abi::fail(ACL_ERROR_FEATURE_UNSUPPORTED,
                "kind is ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE, which is not supported");
  }
  abi::fail(ACL_ERROR_INVALID_PARAM, "kind is ", static_cast<int>(kind),
            "; the ACL_MEMCPY_ constants are accepted");
}

using HeldMemory = std::shared_lock<std::shared_mutex>;

/// Runs what `enqueue` puts on a stream, without order among other work, and waits for it. `held` since its
/// ranges were checked.
template <class F>
void run_now(HeldMemory held, F enqueue) {
  const auto stream = Device::get(Context::current()->device()).create_stream();
  enqueue(*stream);
  held.unlock();
  stream->synchronize();
}

/// Runs what `enqueue` puts on the stream of `handle` in its order. Host memory that is not pinned is the
/// caller's again when the call returns, so with such an address among `addresses` it waits for that.
template <class F>
void run_async(HeldMemory held, aclrtStream handle, std::initializer_list<const void*> addresses, F enqueue) {
  const auto stream = abi::stream_or_default(handle);
  const bool waits = std::any_of(addresses.begin(), addresses.end(),
                                 [](const void* address) { return place_of(address) == MemoryPlace::kHost; });
  if (!waits) return enqueue(*stream);
  Running::require_outside_stream(stream->id(), "host memory that is not pinned");
  enqueue(*stream);
  held.unlock();
  // Enqueued behind it, so that it is dropped when that was.
  const auto reached = std::make_shared<bool>(false);
  stream->launch(Lane::kShort, [reached] { *reached = true; });
  stream->record()->wait(std::nullopt);
  require(*reached, ErrorCode::kAborted, "work of stream ", stream->id(),
          " was dropped by an abort or a failure before it; nothing, or a part, was copied");
}

void copy_now(const RowCopy& copy, aclrtMemcpyKind kind) {
  Device::require_usable();
  const CopyKind known = copy_kind(kind, copy.to, copy.from);
  check_not_null("dst", copy.to, copy.width * copy.rows);
  check_not_null("src", copy.from, copy.width * copy.rows);
  auto held = hold_memory();
  check_copy(copy, known);
  run_now(std::move(held), [&](Stream& stream) { copy_async(copy, stream); });
}

void copy_in_order(const RowCopy& copy, aclrtMemcpyKind kind, aclrtStream handle) {
  abi::check(kind != ACL_MEMCPY_HOST_TO_HOST, ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
             "kind is ACL_MEMCPY_HOST_TO_HOST; asynchronous copies have a device at one side or both");
  Device::require_usable();
  const CopyKind known = copy_kind(kind, copy.to, copy.from);
  check_not_null("dst", copy.to, copy.width * copy.rows);
  check_not_null("src", copy.from, copy.width * copy.rows);
  auto held = hold_memory();
  check_copy(copy, known);
  run_async(std::move(held), handle, {copy.to, copy.from}, [&](Stream& stream) { copy_async(copy, stream); });
}

RowCopy rows(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height) {
  abi::check(width <= dpitch && width <= spitch, ACL_ERROR_INVALID_PARAM, "width is ", width,
             ", but dpitch is ", dpitch, " and spitch ", spitch, "; rows must not overlap");
  const size_t pitch = std::max(dpitch, spitch);
  abi::check(pitch == 0 || height <= SIZE_MAX / pitch, ACL_ERROR_INVALID_PARAM, "height is ", height,
             "; so many rows of ", pitch, " bytes have no address");
  return {dst, src, width, height, dpitch, spitch};
}

}  // namespace

extern "C" {

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return abi::call("aclrtMalloc", [&] { allocate(devPtr, size, policy); });
}

aclError aclrtMallocAlign32(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return abi::call("aclrtMallocAlign32", [&] { allocate(devPtr, size, policy); });
}

aclError aclrtMallocCached(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return abi::call("aclrtMallocCached", [&] { allocate(devPtr, size, policy); });
}

aclError aclrtFree(void* devPtr) {
  return abi::call("aclrtFree", [&] {
    abi::check(devPtr != nullptr, ACL_ERROR_INVALID_PARAM,
               "devPtr is null; what aclrtMalloc gave is accepted");
    Context::free(devPtr);
  });
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return abi::call("aclrtMallocHost", [&] { allocate_host(hostPtr, size, "hostPtr"); });
}

aclError aclrtMallocHostWithCfg(void** ptr, uint64_t size, aclrtMallocConfig* cfg) {
  return abi::call("aclrtMallocHostWithCfg", [&] {
    const size_t attributes = cfg != nullptr ? cfg->numAttrs : 0;
    abi::check(attributes == 0 || cfg->attrs != nullptr, ACL_ERROR_INVALID_PARAM, "cfg->attrs is null, but ",
               attributes, " attributes are announced");
    for (size_t i = 0; i < attributes; ++i)
      abi::check(cfg->attrs[i].attr >= ACL_RT_MEM_ATTR_RSV && cfg->attrs[i].attr <= ACL_RT_MEM_ATTR_VA_FLAG,
                 ACL_ERROR_INVALID_PARAM, "cfg->attrs[", i, "].attr is ", cfg->attrs[i].attr,
                 "; the ACL_RT_MEM_ATTR_ constants are accepted");
    allocate_host(ptr, size, "ptr");
  });
}

aclError aclrtFreeHost(void* hostPtr) {
  return abi::call("aclrtFreeHost", [&] {
    abi::check(hostPtr != nullptr, ACL_ERROR_INVALID_PARAM,
               "hostPtr is null; what aclrtMallocHost gave is accepted");
    free_pinned(hostPtr);
  });
}

aclError aclrtPointerGetAttributes(const void* ptr, aclrtPtrAttributes* attributes) {
  return abi::call("aclrtPointerGetAttributes", [&] {
    abi::check(ptr != nullptr, ACL_ERROR_INVALID_PARAM, "ptr is null; an address is accepted");
    Device::require_usable();
    aclrtPtrAttributes found = {};
    found.location.type = ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    found.pageSize = Arena::kPage;
    Device* device = Device::of(ptr);
    if (device != nullptr && device->arena().find(ptr)) {
      found.location = {static_cast<uint32_t>(device->index()), ACL_MEM_LOCATION_TYPE_DEVICE};
    } else if (find_pinned(ptr) != nullptr) {
      found.location.type = ACL_MEM_LOCATION_TYPE_HOST;
    }
    abi::out(attributes, "attributes") = found;
  });
}

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind) {
  return abi::call("aclrtMemcpy", [&] {
    check_room("destMax", destMax, count);
    copy_now({dst, src, count}, kind);
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return abi::call("aclrtMemcpyAsync", [&] {
    check_room("destMax", destMax, count);
    copy_in_order({dst, src, count}, kind, stream);
  });
}

aclError aclrtMemcpyAsyncWithCondition(void* dst, size_t destMax, const void* src, size_t count,
                                       aclrtMemcpyKind kind, aclrtStream stream) {
  return abi::call("aclrtMemcpyAsyncWithCondition", [&] {
    check_room("destMax", destMax, count);
    copy_in_order({dst, src, count}, kind, stream);
  });
}

aclError aclrtMemcpy2d(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width, size_t height,
                       aclrtMemcpyKind kind) {
  return abi::call("aclrtMemcpy2d", [&] { copy_now(rows(dst, dpitch, src, spitch, width, height), kind); });
}

aclError aclrtMemcpy2dAsync(void* dst, size_t dpitch, const void* src, size_t spitch, size_t width,
                            size_t height, aclrtMemcpyKind kind, aclrtStream stream) {
  return abi::call("aclrtMemcpy2dAsync",
                   [&] { copy_in_order(rows(dst, dpitch, src, spitch, width, height), kind, stream); });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return abi::call("aclrtMemset", [&] {
    check_room("maxCount", maxCount, count);
    Device::require_usable();
    check_not_null("devPtr", devPtr, count);
    auto held = hold_memory();
    check_range("devPtr", devPtr, count);
    run_now(std::move(held),
            [&](Stream& order) { fill_async(devPtr, static_cast<uint8_t>(value), count, order); });
  });
}

aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream stream) {
  return abi::call("aclrtMemsetAsync", [&] {
    check_room("maxCount", maxCount, count);
    Device::require_usable();
    check_not_null("devPtr", devPtr, count);
    auto held = hold_memory();
    check_range("devPtr", devPtr, count);
    run_async(std::move(held), stream, {devPtr},
              [&](Stream& order) { fill_async(devPtr, static_cast<uint8_t>(value), count, order); });
  });
}

}  // extern "C"
