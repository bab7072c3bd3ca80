// Products of matrices and vectors, of acl_cblas.h: row by row in memory, or column by column where the
// argument says so.

#include "acl/ops/acl_cblas.h"

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "abi/call.h"
#include "abi/data_types.h"
#include "abi/handle.h"
#include "abi/operand_memory.h"
#include "ops/cube/matmul.h"
#include "prof/trace.h"
#include "runtime/context.h"
#include "runtime/limits.h"
#include "runtime/memory.h"
#include "tile/lane.h"

using namespace anynpu;

namespace {

using ops::Factor;
using ops::Matmul;
using ops::View;
using tile::DType;

template <class... Parts>
void check(bool condition, const Parts&... parts) {
  abi::check(condition, ACL_ERROR_INVALID_PARAM, parts...);
}

/// How a matrix lies, with the names of the arguments that say it.
struct Lies {
  const char* name;
  aclTransType turned;
  const char* stride_name;
  int stride;  ///< -1: that of adjacent rows
};

View matrix(const Lies& lies, const char* data_name, const void* data, DType dtype, int64_t rows,
            int64_t cols) {
  check(lies.turned >= ACL_TRANS_N && lies.turned <= ACL_TRANS_NZ_T, lies.name, " is ", lies.turned,
        "; the constants of aclTransType are accepted");
  require(lies.turned == ACL_TRANS_N || lies.turned == ACL_TRANS_T, ErrorCode::kUnsupported,
          "not supported: ", lies.name, " is ", lies.turned,
          ", a matrix in blocks; ACL_TRANS_N and ACL_TRANS_T are");
  const bool turned = lies.turned == ACL_TRANS_T;
  const int64_t adjacent = turned ? rows : cols;
  check(lies.stride == -1 || lies.stride >= adjacent, lies.stride_name, " is ", lies.stride, "; -1, and ",
        adjacent, " or more, are accepted: ", data_name, turned ? " has columns" : " has rows", " of ",
        adjacent);
  const int64_t stride = lies.stride == -1 ? adjacent : lies.stride;
  return {dtype,
          const_cast<void*>(data),
          {rows, cols},
          turned ? std::vector<int64_t>{1, stride} : std::vector<int64_t>{stride, 1}};
}

View vector(const void* data, DType dtype, int64_t size, const char* step_name, int step) {
  check(step == -1 || step > 0, step_name, " is ", step,
        "; -1, for adjacent elements, and 1 or more are accepted");
  return {dtype, const_cast<void*>(data), {size}, {step == -1 ? 1 : step}};
}

/// The element at an address of the host, or for the stream to read where it is the device's.
Factor factor(const char* name, const void* data, DType dtype) {
  check(data != nullptr, name, " is null; the address of one element of ", tile::name_of(dtype),
        " is accepted, of the host or the device");
  if (place_of(data) == MemoryPlace::kDevice) return View{dtype, const_cast<void*>(data), {}, {}};
  return tile::visit(dtype, [&]<class T>(std::type_identity<T>) -> double {
    T value;
    std::memcpy(&value, data, sizeof(T));
    return static_cast<double>(tile::widen(value));
  });
}

/// Sums of products, or what operands are: sums are rounded once.
void check_types(const char* left_name, DType left, const char* right_name, DType right,
                 const char* result_name, DType result) {
  constexpr tile::DTypes kTypes = ops::kProductTypes | tile::DTypes(DType::kI8);
  check(kTypes.contains(left), left_name, " is ", tile::name_of(left),
        "; int8, int32, float16, bfloat16, float and double are accepted");
  check(left == right, right_name, " is ", tile::name_of(right), ", but ", left_name, " is ",
        tile::name_of(left), "; the same type is accepted");
  const DType sums = ops::sum_type(left);
  check(result == sums || (result == left && left != DType::kI8), result_name, " is ", tile::name_of(result),
        "; for products of ", tile::name_of(left), ", ", tile::name_of(sums),
        left == sums || left == DType::kI8 ? " is" : " and that type are", " accepted");
}

void check_size(const char* name, int size) {
  check(size >= 0, name, " is ", size, "; 0 or more is accepted");
}

/// Memory that a call has besides its operands; it ends after the work that is enqueued then.
class Temporaries {
 public:
  Temporaries() = default;
  Temporaries(const Temporaries&) = delete;
  ~Temporaries() {
    for (void* address : addresses_) Context::free(address);
  }
  ops::TakeMemory taker() {
    return [this](int64_t bytes) {
      addresses_.push_back(Context::current()->allocate(static_cast<size_t>(bytes)));
      return addresses_.back();
    };
  }

 private:
  std::vector<void*> addresses_;
};

/// The names of a call's operands.
struct Names {
  const char *left, *right, *result;
};

/// result = alpha * (left @ right) + beta * result
void multiply(const char* function, const Names& names, Matmul call, const void* alpha, const void* beta,
              aclComputeType type, aclrtStream stream_handle) {
  check(type == ACL_COMPUTE_HIGH_PRECISION || type == ACL_COMPUTE_LOW_PRECISION, "type is ", type,
        "; the constants of aclComputeType are accepted");
  call.alpha = factor("alpha", alpha, call.out.dtype);
  call.beta = factor("beta", beta, call.out.dtype);
  call.added = call.out;
  check(!call.out.overlaps_itself(), names.result, " is written, but has elements that share memory");
  const std::pair<const char*, const View*> operands[] = {{names.left, &call.left},
                                                          {names.right, &call.right}};
  for (const auto& [name, view] : operands)
    check(!call.out.overlaps(*view), names.result, " is written, and shares memory with ", name);
  const auto stream = abi::stream_or_default(stream_handle);
  Temporaries temporaries;
  const std::vector<ops::Launch> launches = prepare(call, temporaries.taker());
  const auto held = hold_memory();
  constexpr abi::MemoryCodes kCodes = {ACL_ERROR_INVALID_PARAM, ACL_ERROR_INVALID_PARAM};
  const auto check_view = [&](const char* name, const View& view) {
    abi::check_memory(name, view, stream->device(), kCodes);
  };
  for (const auto& [name, view] : operands) check_view(name, *view);
  check_view(names.result, call.out);
  if (const auto* view = std::get_if<View>(&call.alpha)) check_view("alpha", *view);
  if (const auto* view = std::get_if<View>(&call.beta)) check_view("beta", *view);
  const TaskLabel label(function);
  const auto threads = static_cast<int>(thread_limit(stream->device()));
  for (const ops::Launch& launch : launches) ops::enqueue(*stream, launch, threads);
}

struct GemmArguments {
  const char* function;
  aclTransType turned_a, turned_b, turned_c;
  int m, n, k;
  const void *alpha, *a;
  int stride_a;
  DType type_a;
  const void* b;
  int stride_b;
  DType type_b;
  const void* beta;
  void* c;
  int stride_c;
  DType type_c;
  aclComputeType type;
  aclrtStream stream;
};

void gemm(const GemmArguments& call) {
  check_size("m", call.m);
  check_size("n", call.n);
  check_size("k", call.k);
  check_types("dataTypeA", call.type_a, "dataTypeB", call.type_b, "dataTypeC", call.type_c);
  multiply(call.function, {"matrixA", "matrixB", "matrixC"},
           {matrix({"transA", call.turned_a, "lda", call.stride_a}, "matrixA", call.a, call.type_a, call.m,
                   call.k),
            matrix({"transB", call.turned_b, "ldb", call.stride_b}, "matrixB", call.b, call.type_b, call.k,
                   call.n),
            matrix({"transC", call.turned_c, "ldc", call.stride_c}, "matrixC", call.c, call.type_c, call.m,
                   call.n)},
           call.alpha, call.beta, call.type, call.stream);
}

struct GemvArguments {
  const char* function;
  aclTransType turned;
  int m, n;
  const void *alpha, *a;
  int stride;
  DType type_a;
  const void* x;
  int step_x;
  DType type_x;
  const void* beta;
  void* y;
  int step_y;
  DType type_y;
  aclComputeType type;
  aclrtStream stream;
};

/// A is m x n as it lies, and its transpose is what is multiplied where the argument says so.
void gemv(const GemvArguments& call) {
  check_size("m", call.m);
  check_size("n", call.n);
  check_types("dataTypeA", call.type_a, "dataTypeX", call.type_x, "dataTypeY", call.type_y);
  const bool turned = call.turned == ACL_TRANS_T;
  const int rows = turned ? call.n : call.m, cols = turned ? call.m : call.n;
  multiply(call.function, {"a", "x", "y"},
           {matrix({"transA", call.turned, "lda", call.stride}, "a", call.a, call.type_a, rows, cols),
            vector(call.x, call.type_x, cols, "incx", call.step_x),
            vector(call.y, call.type_y, rows, "incy", call.step_y)},
           call.alpha, call.beta, call.type, call.stream);
}

}  // namespace

extern "C" {

aclError aclblasGemmEx(aclTransType transA, aclTransType transB, aclTransType transC, int m, int n, int k,
                       const void* alpha, const void* matrixA, int lda, aclDataType dataTypeA,
                       const void* matrixB, int ldb, aclDataType dataTypeB, const void* beta, void* matrixC,
                       int ldc, aclDataType dataTypeC, aclComputeType type, aclrtStream stream) {
  return abi::call("aclblasGemmEx", [&] {
    const DType of_a = abi::dtype_of(dataTypeA, "dataTypeA"), of_b = abi::dtype_of(dataTypeB, "dataTypeB"),
                of_c = abi::dtype_of(dataTypeC, "dataTypeC");
    gemm({"aclblasGemmEx", transA, transB, transC, m,       n,   k,    alpha, matrixA, lda, of_a,
          matrixB,         ldb,    of_b,   beta,   matrixC, ldc, of_c, type,  stream});
  });
}

aclError aclblasHgemm(aclTransType transA, aclTransType transB, aclTransType transC, int m, int n, int k,
                      const aclFloat16* alpha, const aclFloat16* matrixA, int lda, const aclFloat16* matrixB,
                      int ldb, const aclFloat16* beta, aclFloat16* matrixC, int ldc, aclComputeType type,
                      aclrtStream stream) {
  return abi::call("aclblasHgemm", [&] {
    constexpr DType kType = DType::kF16;
    gemm({"aclblasHgemm", transA,  transB, transC, m,    n,       k,   alpha, matrixA, lda,
          kType,          matrixB, ldb,    kType,  beta, matrixC, ldc, kType, type,    stream});
  });
}

aclError aclblasS8gemm(aclTransType transA, aclTransType transB, aclTransType transC, int m, int n, int k,
                       const int32_t* alpha, const int8_t* matrixA, int lda, const int8_t* matrixB, int ldb,
                       const int32_t* beta, int32_t* matrixC, int ldc, aclComputeType type,
                       aclrtStream stream) {
  return abi::call("aclblasS8gemm", [&] {
    gemm({"aclblasS8gemm", transA,  transB, transC,     m,    n,       k,   alpha,       matrixA, lda,
          DType::kI8,      matrixB, ldb,    DType::kI8, beta, matrixC, ldc, DType::kI32, type,    stream});
  });
}

aclError aclblasGemvEx(aclTransType transA, int m, int n, const void* alpha, const void* a, int lda,
                       aclDataType dataTypeA, const void* x, int incx, aclDataType dataTypeX,
                       const void* beta, void* y, int incy, aclDataType dataTypeY, aclComputeType type,
                       aclrtStream stream) {
  return abi::call("aclblasGemvEx", [&] {
    const DType of_a = abi::dtype_of(dataTypeA, "dataTypeA"), of_x = abi::dtype_of(dataTypeX, "dataTypeX"),
                of_y = abi::dtype_of(dataTypeY, "dataTypeY");
    gemv({"aclblasGemvEx", transA, m, n, alpha, a, lda, of_a, x, incx, of_x, beta, y, incy, of_y, type,
          stream});
  });
}

aclError aclblasHgemv(aclTransType transA, int m, int n, const aclFloat16* alpha, const aclFloat16* a,
                      int lda, const aclFloat16* x, int incx, const aclFloat16* beta, aclFloat16* y, int incy,
                      aclComputeType type, aclrtStream stream) {
  return abi::call("aclblasHgemv", [&] {
    constexpr DType kType = DType::kF16;
    gemv({"aclblasHgemv", transA, m, n, alpha, a, lda, kType, x, incx, kType, beta, y, incy, kType, type,
          stream});
  });
}

aclError aclblasS8gemv(aclTransType transA, int m, int n, const int32_t* alpha, const int8_t* a, int lda,
                       const int8_t* x, int incx, const int32_t* beta, int32_t* y, int incy,
                       aclComputeType type, aclrtStream stream) {
  return abi::call("aclblasS8gemv", [&] {
    gemv({"aclblasS8gemv", transA, m, n, alpha, a, lda, DType::kI8, x, incx, DType::kI8, beta, y, incy,
          DType::kI32, type, stream});
  });
}

}  // extern "C"
