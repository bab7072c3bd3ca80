#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi/data_types.h"
#include "aclnn/acl_meta.h"
#include "runtime/handles.h"
#include "tile/dtype.h"
#include "tile/ir.h"

/// What callers describe with aclCreateTensor. The memory is theirs.
struct aclTensor {
  aclDataType type;
  aclFormat format;
  std::vector<int64_t> sizes, strides;  // strides in elements
  int64_t offset;                       // in elements
  std::vector<int64_t> storage_sizes;   // empty: not known
  void* storage;                        // null: not known yet
};

struct aclScalar {
  aclDataType type;
  std::array<std::byte, 16> bytes;  // of the largest type
};

struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclBoolArray {
  std::vector<bool> values;
};

/// Handles of objects that end with the list.
struct aclTensorList {
  std::vector<const aclTensor*> values;
};
struct aclScalarList {
  std::vector<const aclScalar*> values;
};

namespace anynpu {

template <>
struct KindOf<aclTensor> : KindIs<HandleKind::kTensor> {};
template <>
struct KindOf<aclScalar> : KindIs<HandleKind::kScalar> {};
template <>
struct KindOf<aclIntArray> : KindIs<HandleKind::kIntArray> {};
template <>
struct KindOf<aclFloatArray> : KindIs<HandleKind::kFloatArray> {};
template <>
struct KindOf<aclBoolArray> : KindIs<HandleKind::kBoolArray> {};
template <>
struct KindOf<aclTensorList> : KindIs<HandleKind::kTensorList> {};
template <>
struct KindOf<aclScalarList> : KindIs<HandleKind::kScalarList> {};
template <>
struct KindOf<aclOpExecutor> : KindIs<HandleKind::kExecutor> {};

namespace aclnn {

/// The number that a scalar is, of its type. Raises kUnsupported where kernels have no such type.
struct Number {
  tile::DType dtype;
  tile::Literal value;
};
Number number_of(const aclScalar& scalar, const char* argument);

}  // namespace aclnn
}  // namespace anynpu
