#include "abi/data_types.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace anynpu::abi {
namespace {

using tile::DType;

constexpr DataType kDataTypes[] = {
    {ACL_FLOAT, "ACL_FLOAT", 32, DType::kF32},
    {ACL_FLOAT16, "ACL_FLOAT16", 16, DType::kF16},
    {ACL_BF16, "ACL_BF16", 16, DType::kBF16},
    {ACL_DOUBLE, "ACL_DOUBLE", 64, DType::kF64},
    {ACL_BOOL, "ACL_BOOL", 8, DType::kBool},
    {ACL_UINT8, "ACL_UINT8", 8, DType::kU8},
    {ACL_INT8, "ACL_INT8", 8, DType::kI8},
    {ACL_INT16, "ACL_INT16", 16, DType::kI16},
    {ACL_INT32, "ACL_INT32", 32, DType::kI32},
    {ACL_INT64, "ACL_INT64", 64, DType::kI64},
    {ACL_UINT16, "ACL_UINT16", 16},
    {ACL_UINT32, "ACL_UINT32", 32},
    {ACL_UINT64, "ACL_UINT64", 64},
    {ACL_COMPLEX32, "ACL_COMPLEX32", 32},
    {ACL_COMPLEX64, "ACL_COMPLEX64", 64},
    {ACL_COMPLEX128, "ACL_COMPLEX128", 128},
    {ACL_HIFLOAT8, "ACL_HIFLOAT8", 8},
    {ACL_FLOAT8_E5M2, "ACL_FLOAT8_E5M2", 8},
    {ACL_FLOAT8_E4M3FN, "ACL_FLOAT8_E4M3FN", 8},
    {ACL_FLOAT8_E8M0, "ACL_FLOAT8_E8M0", 8},
    {ACL_FLOAT6_E3M2, "ACL_FLOAT6_E3M2", 6},
    {ACL_FLOAT6_E2M3, "ACL_FLOAT6_E2M3", 6},
    {ACL_FLOAT4_E2M1, "ACL_FLOAT4_E2M1", 4},
    {ACL_FLOAT4_E1M2, "ACL_FLOAT4_E1M2", 4},
    {ACL_INT4, "ACL_INT4", 4},
    {ACL_UINT1, "ACL_UINT1", 1},
    {ACL_STRING, "ACL_STRING", 0},
};

}  // namespace

const DataType* find_data_type(aclDataType type) {
  const auto* const found = std::find_if(std::begin(kDataTypes), std::end(kDataTypes),
                                         [&](const DataType& known) { return known.type == type; });
  return found == std::end(kDataTypes) ? nullptr : found;
}

DType dtype_of(aclDataType type, const char* argument) {
  const DataType* const known = find_data_type(type);
  require(known != nullptr && known->dtype, ErrorCode::kUnsupported, "not supported: ", argument, " is ",
          known != nullptr ? known->name : "of no type",
          "; kernels have bool, uint8, int8 to int64, float16, bfloat16, float and double");
  return *known->dtype;
}

}  // namespace anynpu::abi
