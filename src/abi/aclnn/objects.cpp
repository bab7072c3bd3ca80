#include "abi/aclnn/objects.h"

#include <cstring>

#include "tile/lane.h"

namespace anynpu::aclnn {

using tile::DType;

Number number_of(const aclScalar& scalar, const char* argument) {
  const DType dtype = abi::dtype_of(scalar.type, argument);
  return {dtype, tile::visit(dtype, [&]<class T>(std::type_identity<T>) -> tile::Literal {
            T value;
            std::memcpy(&value, scalar.bytes.data(), sizeof(T));
            if constexpr (std::is_integral_v<T>) return static_cast<int64_t>(value);
            return static_cast<double>(tile::widen(value));
          })};
}

}  // namespace anynpu::aclnn
