// Memory and copies of acl_rt.h.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

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

void register_host_memory(void* address, uint64_t size) {
  abi::check(address != nullptr, ACL_ERROR_INVALID_PARAM, "ptr is null; host memory is accepted");
  abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
  (void)Context::current();
  register_host(address, size);
}

/// Memory that is coherent is as if it had been written back, and dropped from caches, at any time.
void check_coherent(const char* name, void* address, size_t size) {
  Device::require_usable();
  abi::check(size != 0, ACL_ERROR_INVALID_PARAM, "size is 0; 1 or more is accepted");
  check_range(name, address, size);
  abi::check(Device::of(address) != nullptr, ACL_ERROR_RT_PARAM_INVALID, name, " (", address,
             ") is host memory; device memory is accepted");
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

bool is_pageable(const void* address) { return place_of(address) == MemoryPlace::kHost; }
bool is_pageable(const RowCopy& copy) { return is_pageable(copy.to) || is_pageable(copy.from); }

/// Runs what `enqueue` puts on the stream of `handle` in its order. Host memory that is not pinned is the
/// caller's again when the call returns, so with `pageable` memory it waits for that.
template <class F>
void run_async(HeldMemory held, aclrtStream handle, bool pageable, F enqueue) {
  const auto stream = abi::stream_or_default(handle);
  if (!pageable) return enqueue(*stream);
  Running::require_outside_stream(stream->id(), "host memory that is not pinned");
  enqueue(*stream);
  held.unlock();
  // Enqueued behind it, so that it is dropped when that was.
  const auto reached = std::make_shared<bool>(false);
  stream->launch(Lane::kShort, [reached] { *reached = true; }, Writes::nothing());
  stream->record()->wait(std::nullopt);
  require(*reached, ErrorCode::kAborted, "work of stream ", stream->id(),
          " was dropped by an abort or a failure before it; nothing, or a part, was copied");
}

/// Raises, naming the argument, where the copy cannot be done. With hold_memory() until it is enqueued.
void check(const RowCopy& copy, aclrtMemcpyKind kind) {
  const CopyKind known = copy_kind(kind, copy.to, copy.from);
  check_not_null("dst", copy.to, copy.width * copy.rows);
  check_not_null("src", copy.from, copy.width * copy.rows);
  check_copy(copy, known);
}

void copy_now(const RowCopy& copy, aclrtMemcpyKind kind) {
  Device::require_usable();
  auto held = hold_memory();
  check(copy, kind);
  run_now(std::move(held), [&](Stream& stream) { copy_async(copy, stream); });
}

void copy_in_order(const RowCopy& copy, aclrtMemcpyKind kind, aclrtStream handle) {
  abi::check(kind != ACL_MEMCPY_HOST_TO_HOST, ACL_ERROR_RT_FEATURE_NOT_SUPPORT,
             "kind is ACL_MEMCPY_HOST_TO_HOST; asynchronous copies have a device at one side or both");
  Device::require_usable();
  auto held = hold_memory();
  check(copy, kind);
  run_async(std::move(held), handle, is_pageable(copy), [&](Stream& stream) { copy_async(copy, stream); });
}

/// Where attributes of a batch say that an address lies, checked against where it does.
void check_location(const char* name, size_t copy, const void* address, const aclrtMemLocation& location) {
  const Device* device = Device::of(address);
  const bool device_wanted = location.type == ACL_MEM_LOCATION_TYPE_DEVICE;
  abi::check(device_wanted || location.type == ACL_MEM_LOCATION_TYPE_HOST, ACL_ERROR_INVALID_PARAM, name,
             "Loc.type for copy ", copy, " is ", location.type,
             "; ACL_MEM_LOCATION_TYPE_HOST and ACL_MEM_LOCATION_TYPE_DEVICE are accepted");
  abi::check(device_wanted == (device != nullptr), ACL_ERROR_RT_PARAM_INVALID, name, "s[", copy, "] (",
             address, ") is ", device != nullptr ? "device" : "host",
             " memory, but its attribute says otherwise");
  abi::check(device == nullptr || static_cast<uint32_t>(device->index()) == location.id,
             ACL_ERROR_RT_PARAM_INVALID, name, "s[", copy, "] (", address, ") lies on device ",
             device != nullptr ? device->index() : 0, ", but its attribute says device ", location.id);
}

/// The arguments of a batch of copies. Attribute i holds from copy attrsIndexes[i] to that of the next.
struct Batch {
  void** dsts;
  size_t* room;
  void** srcs;
  size_t* sizes;
  size_t count;
  aclrtMemcpyBatchAttr* attributes;
  size_t* starts;
  size_t attribute_count;

  /// All copies, checked as a whole, with hold_memory() until they are enqueued: none is done unless all can
  /// be. Where one cannot, `failed` is its index, where it is no single one SIZE_MAX.
  std::vector<RowCopy> checked(size_t* failed) const {
    size_t at = SIZE_MAX;
    try {
      check_arguments();
      std::vector<RowCopy> copies;
      for (size_t copy = 0, attribute = 0; copy < count; ++copy) {
        if (attribute + 1 < attribute_count && starts[attribute + 1] == copy) ++attribute;
        at = copy;
        abi::check(sizes[copy] <= room[copy], ACL_ERROR_INVALID_PARAM, "sizes[", copy, "] is ", sizes[copy],
                   ", but destMax[", copy, "] is ", room[copy]);
        check(copies.emplace_back(RowCopy{dsts[copy], srcs[copy], sizes[copy]}), ACL_MEMCPY_DEFAULT);
        if (sizes[copy] == 0) continue;
        check_location("dst", copy, dsts[copy], attributes[attribute].dstLoc);
        check_location("src", copy, srcs[copy], attributes[attribute].srcLoc);
      }
      return copies;
    } catch (...) {
      if (failed != nullptr) *failed = at;
      throw;
    }
  }

 private:
  void check_arguments() const {
    abi::check(count != 0, ACL_ERROR_INVALID_PARAM, "numBatches is 0; 1 or more is accepted");
    const struct {
      const char* name;
      bool given;
    } arrays[] = {{"dsts", dsts != nullptr},        {"destMax", room != nullptr},
                  {"srcs", srcs != nullptr},        {"sizes", sizes != nullptr},
                  {"attrs", attributes != nullptr}, {"attrsIndexes", starts != nullptr}};
    for (const auto& [name, given] : arrays)
      abi::check(given, ACL_ERROR_INVALID_PARAM, name, " is null; an array is accepted");
    abi::check(attribute_count != 0 && attribute_count <= count, ACL_ERROR_INVALID_PARAM, "numAttrs is ",
               attribute_count, "; 1 to numBatches (", count, ") are accepted");
    for (size_t i = 0; i < attribute_count; ++i)
      abi::check(i == 0 ? starts[i] == 0 : starts[i] > starts[i - 1] && starts[i] < count,
                 ACL_ERROR_INVALID_PARAM, "attrsIndexes[", i, "] is ", starts[i],
                 "; the first must be 0, and each larger than the one before and less than numBatches (",
                 count, ")");
  }
};

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

aclError aclrtHostRegister(void* ptr, uint64_t size, aclrtHostRegisterType type, void** devPtr) {
  return abi::call("aclrtHostRegister", [&] {
    void*& place = abi::out(devPtr, "devPtr");
    abi::check(type == ACL_HOST_REGISTER_MAPPED, ACL_ERROR_INVALID_PARAM, "type is ", type,
               "; ACL_HOST_REGISTER_MAPPED is accepted");
    register_host_memory(ptr, size);
    place = ptr;
  });
}

aclError aclrtHostRegisterV2(void* ptr, uint64_t size, uint32_t flag) {
  return abi::call("aclrtHostRegisterV2", [&] {
    constexpr uint32_t kKnown = ACL_HOST_REG_MAPPED | ACL_HOST_REG_PINNED;
    abi::check(flag != 0 && (flag & ~kKnown) == 0, ACL_ERROR_INVALID_PARAM, "flag is ", flag,
               "; ACL_HOST_REG_MAPPED, ACL_HOST_REG_PINNED and both are accepted");
    register_host_memory(ptr, size);
  });
}

aclError aclrtHostUnregister(void* ptr) {
  return abi::call("aclrtHostUnregister", [&] {
    abi::check(ptr != nullptr, ACL_ERROR_INVALID_PARAM, "ptr is null; registered host memory is accepted");
    unregister_host(ptr);
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

aclError aclrtMemcpyBatch(void** dsts, size_t* destMax, void** srcs, size_t* sizes, size_t numBatches,
                          aclrtMemcpyBatchAttr* attrs, size_t* attrsIndexes, size_t numAttrs,
                          size_t* failIdx) {
  return abi::call("aclrtMemcpyBatch", [&] {
    const Batch batch = {dsts, destMax, srcs, sizes, numBatches, attrs, attrsIndexes, numAttrs};
    Device::require_usable();
    auto held = hold_memory();
    const auto copies = batch.checked(failIdx);
    run_now(std::move(held), [&](Stream& stream) {
      for (const RowCopy& copy : copies) copy_async(copy, stream);
    });
  });
}

aclError aclrtMemcpyBatchAsync(void** dsts, size_t* destMax, void** srcs, size_t* sizes, size_t numBatches,
                               aclrtMemcpyBatchAttr* attrs, size_t* attrsIndexes, size_t numAttrs,
                               size_t* failIndex, aclrtStream stream) {
  return abi::call("aclrtMemcpyBatchAsync", [&] {
    const Batch batch = {dsts, destMax, srcs, sizes, numBatches, attrs, attrsIndexes, numAttrs};
    Device::require_usable();
    auto held = hold_memory();
    const auto copies = batch.checked(failIndex);
    const bool pageable =
        std::any_of(copies.begin(), copies.end(), [](const RowCopy& copy) { return is_pageable(copy); });
    run_async(std::move(held), stream, pageable, [&](Stream& order) {
      for (const RowCopy& copy : copies) copy_async(copy, order);
    });
  });
}

aclError aclrtMemFlush(void* devPtr, size_t size) {
  return abi::call("aclrtMemFlush", [&] { check_coherent("devPtr", devPtr, size); });
}

aclError aclrtMemInvalidate(void* devPtr, size_t size) {
  return abi::call("aclrtMemInvalidate", [&] { check_coherent("devPtr", devPtr, size); });
}

aclError aclrtCmoAsync(void* src, size_t size, aclrtCmoType cmoType, aclrtStream stream) {
  return abi::call("aclrtCmoAsync", [&] {
    const auto order = abi::stream_or_default(stream);
    abi::check(cmoType >= ACL_RT_CMO_TYPE_PREFETCH && cmoType <= ACL_RT_CMO_TYPE_FLUSH,
               ACL_ERROR_INVALID_PARAM, "cmoType is ", cmoType,
               "; the ACL_RT_CMO_TYPE_ constants are accepted");
    const auto held = hold_memory();
    check_coherent("src", src, size);
    if (cmoType == ACL_RT_CMO_TYPE_PREFETCH) prefetch_async(src, size, *order);
  });
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
    run_async(std::move(held), stream, is_pageable(devPtr),
              [&](Stream& order) { fill_async(devPtr, static_cast<uint8_t>(value), count, order); });
  });
}

}  // extern "C"
