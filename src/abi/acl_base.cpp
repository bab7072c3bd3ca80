// Data types, data buffers, tensor descriptions and the log of acl_base.h.

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/call.h"
#include "abi/handle.h"
#include "acl/acl.h"
#include "base/half.h"
#include "base/log.h"

using namespace anynpu;

struct aclDataBuffer {
  void* address;
  size_t size;
};

struct aclTensorDesc {
  aclDataType type;
  aclFormat format;
  bool known_rank;
  std::vector<int64_t> dims;                        // -1: unknown
  std::vector<std::pair<int64_t, int64_t>> ranges;  // of each dim, or empty
  std::string name;
};

namespace {

constexpr int64_t kUnknownDim = -1, kUnknownRank = -2;
constexpr int kMostDims = 128;  // more are taken for a mistake

size_t size_of(aclDataType type) {
  switch (type) {
    case ACL_BOOL:
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_HIFLOAT8:
    case ACL_FLOAT8_E5M2:
    case ACL_FLOAT8_E4M3FN:
    case ACL_FLOAT8_E8M0:
      return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
      return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
    case ACL_COMPLEX32:
      return 4;
    case ACL_DOUBLE:
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_COMPLEX64:
      return 8;
    case ACL_COMPLEX128:
      return 16;
    default:
      return 0;
  }
}

/// The product of the dims; 0 where a dim is unknown.
size_t element_count(const aclTensorDesc& desc) {
  if (!desc.known_rank) return 0;
  if (std::find(desc.dims.begin(), desc.dims.end(), 0) != desc.dims.end()) return 0;
  size_t count = 1;
  for (const int64_t dim : desc.dims) {
    if (dim == kUnknownDim) return 0;
    abi::check(!__builtin_mul_overflow(count, static_cast<size_t>(dim), &count), ACL_ERROR_INVALID_PARAM,
               "desc has more elements than a size_t can count");
  }
  return count;
}

std::shared_ptr<aclTensorDesc> described(const aclTensorDesc* desc) {
  return abi::handle<aclTensorDesc>(desc, "desc");
}

/// Dim number `index` of a description.
template <class T>
T& checked_dim(const aclTensorDesc& desc, std::vector<T>& of_dims, size_t index) {
  abi::check(index < desc.dims.size(), ACL_ERROR_INVALID_PARAM, "index is ", index, ", but desc has ",
             desc.dims.size(), " dims");
  return of_dims[index];
}

aclTensorDesc* create_desc(aclDataType type, int count, const int64_t* dims, aclFormat format) {
  abi::check(count >= 0 && count <= kMostDims && (count == 0 || dims != nullptr), ACL_ERROR_INVALID_PARAM,
             "numDims is ", count, " and dims is ", dims, "; 0, or 1 to ", kMostDims,
             " with the address of so many dims, are accepted");
  auto desc = std::make_shared<aclTensorDesc>(aclTensorDesc{
      .type = type, .format = format, .known_rank = true, .dims = {}, .ranges = {}, .name = {}});
  if (count == 1 && dims[0] == kUnknownRank) {
    desc->known_rank = false;
  } else {
    if (count != 0) desc->dims.assign(dims, dims + count);
    for (int i = 0; i < count; ++i)
      abi::check(dims[i] >= kUnknownDim, ACL_ERROR_INVALID_PARAM, "dims[", i, "] is ", dims[i],
                 "; 0 and more, and -1 for unknown, are accepted");
  }
  return static_cast<aclTensorDesc*>(new_handle(std::move(desc)));
}

std::string formatted(const char* format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  std::string text(std::max(0, std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return text;
}

}  // namespace

extern "C" {

float aclFloat16ToFloat(aclFloat16 value) { return half_to_float(value); }

aclFloat16 aclFloatToFloat16(float value) { return float_to_half(value); }

size_t aclDataTypeSize(aclDataType dataType) { return size_of(dataType); }

aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) {
  return abi::call_or(nullptr, "aclCreateDataBuffer", [&] {
    return static_cast<aclDataBuffer*>(
        new_handle(std::make_shared<aclDataBuffer>(aclDataBuffer{data, size})));
  });
}

aclError aclDestroyDataBuffer(const aclDataBuffer* dataBuffer) {
  return abi::call("aclDestroyDataBuffer", [&] { abi::taken<aclDataBuffer>(dataBuffer, "dataBuffer"); });
}

aclError aclUpdateDataBuffer(aclDataBuffer* dataBuffer, void* data, size_t size) {
  return abi::call("aclUpdateDataBuffer",
                   [&] { *abi::handle<aclDataBuffer>(dataBuffer, "dataBuffer") = {data, size}; });
}

void* aclGetDataBufferAddr(const aclDataBuffer* dataBuffer) {
  return abi::call_or(nullptr, "aclGetDataBufferAddr",
                      [&] { return abi::handle<aclDataBuffer>(dataBuffer, "dataBuffer")->address; });
}

uint32_t aclGetDataBufferSize(const aclDataBuffer* dataBuffer) {
  return abi::call_or(0, "aclGetDataBufferSize", [&] {
    return static_cast<uint32_t>(abi::handle<aclDataBuffer>(dataBuffer, "dataBuffer")->size);
  });
}

size_t aclGetDataBufferSizeV2(const aclDataBuffer* dataBuffer) {
  return abi::call_or(0, "aclGetDataBufferSizeV2",
                      [&] { return abi::handle<aclDataBuffer>(dataBuffer, "dataBuffer")->size; });
}

aclTensorDesc* aclCreateTensorDesc(aclDataType dataType, int numDims, const int64_t* dims, aclFormat format) {
  return abi::call_or(nullptr, "aclCreateTensorDesc",
                      [&] { return create_desc(dataType, numDims, dims, format); });
}

void aclDestroyTensorDesc(const aclTensorDesc* desc) {
  abi::call("aclDestroyTensorDesc", [&] { abi::taken<aclTensorDesc>(desc, "desc"); });
}

aclDataType aclGetTensorDescType(const aclTensorDesc* desc) {
  return abi::call_or(ACL_DT_UNDEFINED, "aclGetTensorDescType", [&] { return described(desc)->type; });
}

aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) {
  return abi::call_or(ACL_FORMAT_UNDEFINED, "aclGetTensorDescFormat",
                      [&] { return described(desc)->format; });
}

size_t aclGetTensorDescSize(const aclTensorDesc* desc) {
  return abi::call_or(0, "aclGetTensorDescSize", [&] {
    const auto found = described(desc);
    size_t bytes = 0;
    abi::check(!__builtin_mul_overflow(element_count(*found), size_of(found->type), &bytes),
               ACL_ERROR_INVALID_PARAM, "desc has more bytes than a size_t can count");
    return bytes;
  });
}

size_t aclGetTensorDescElementCount(const aclTensorDesc* desc) {
  return abi::call_or(0, "aclGetTensorDescElementCount", [&] { return element_count(*described(desc)); });
}

size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) {
  return abi::call_or(0, "aclGetTensorDescNumDims", [&]() -> size_t {
    const auto found = described(desc);
    return found->known_rank ? found->dims.size() : ACL_UNKNOWN_RANK;
  });
}

int64_t aclGetTensorDescDim(const aclTensorDesc* desc, size_t index) {
  return abi::call_or(-1, "aclGetTensorDescDim", [&] {
    const auto found = described(desc);
    return checked_dim(*found, found->dims, index);
  });
}

aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* dimSize) {
  return abi::call("aclGetTensorDescDimV2", [&] {
    const auto found = described(desc);
    abi::out(dimSize, "dimSize") = checked_dim(*found, found->dims, index);
  });
}

aclError aclSetTensorShapeRange(aclTensorDesc* desc, size_t dimsCount,
                                int64_t dimsRange[][ACL_TENSOR_SHAPE_RANGE_NUM]) {
  return abi::call("aclSetTensorShapeRange", [&] {
    const auto found = described(desc);
    const size_t least = found->known_rank ? found->dims.size() : 0;
    const size_t most = found->known_rank ? least : kMostDims;
    abi::check(dimsRange != nullptr && dimsCount >= least && dimsCount <= most, ACL_ERROR_INVALID_PARAM,
               "dimsRange is ", dimsRange, " and dimsCount ", dimsCount,
               "; the address of one range for each dim is accepted, here of ", least, " to ", most);
    found->ranges.clear();
    for (size_t i = 0; i < dimsCount; ++i) found->ranges.emplace_back(dimsRange[i][0], dimsRange[i][1]);
  });
}

aclError aclGetTensorDescDimRange(const aclTensorDesc* desc, size_t index, size_t dimRangeNum,
                                  int64_t* dimRange) {
  return abi::call("aclGetTensorDescDimRange", [&] {
    const auto found = described(desc);
    abi::check(dimRange != nullptr && dimRangeNum >= ACL_TENSOR_SHAPE_RANGE_NUM, ACL_ERROR_INVALID_PARAM,
               "dimRange is ", dimRange, " and dimRangeNum ", dimRangeNum, "; 2 places or more are accepted");
    abi::check(index < found->ranges.size(), ACL_ERROR_INVALID_PARAM, "index is ", index,
               ", but aclSetTensorShapeRange set ", found->ranges.size(), " ranges");
    std::tie(dimRange[0], dimRange[1]) = found->ranges[index];
  });
}

void aclSetTensorDescName(aclTensorDesc* desc, const char* name) {
  abi::call("aclSetTensorDescName", [&] { described(desc)->name = name != nullptr ? name : ""; });
}

const char* aclGetTensorDescName(aclTensorDesc* desc) {
  return abi::call_or(nullptr, "aclGetTensorDescName", [&] { return described(desc)->name.c_str(); });
}

void aclAppLog(aclLogLevel logLevel, const char* func, const char* file, uint32_t line, const char* fmt,
               ...) {
  va_list arguments;
  va_start(arguments, fmt);
  abi::call("aclAppLog", [&] {
    constexpr const char* kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR"};
    abi::check(logLevel >= ACL_DEBUG && logLevel <= ACL_ERROR, ACL_ERROR_INVALID_PARAM, "logLevel is ",
               logLevel, "; ACL_DEBUG to ACL_ERROR are accepted");
    abi::check(fmt != nullptr, ACL_ERROR_INVALID_PARAM, "fmt is null; a format as of printf is accepted");
    if (!logged(static_cast<LogLevel>(logLevel))) return;
    write_line(concat('[', kNames[logLevel], "] ", file != nullptr ? file : "", ':', line, ' ',
                      func != nullptr ? func : "", ": ", formatted(fmt, arguments)));
  });
  va_end(arguments);
}

}  // extern "C"
