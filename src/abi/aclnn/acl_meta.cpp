// Tensors, scalars, arrays and lists of acl_meta.h, and the functions of aclnn_base.h.

#include <algorithm>
#include <cstring>
#include <utility>

#include "abi/aclnn/objects.h"
#include "abi/aclnn/status.h"
#include "aclnn/aclnn_base.h"

using namespace anynpu;
using aclnn::check;
using aclnn::object;

namespace {

constexpr uint64_t kMostDims = 128;                // more are taken for a mistake
constexpr int64_t kMostElements = INT64_MAX / 16;  // so that bytes can be counted

std::vector<int64_t> dims(const char* argument, const int64_t* values, uint64_t count) {
  check(count <= kMostDims, argument, "Num is ", count, "; 0 to ", kMostDims, " are accepted");
  abi::check(count == 0 || values != nullptr, ACLNN_ERR_PARAM_NULLPTR, argument, " is null, but ", argument,
             "Num is ", count);
  std::vector<int64_t> copied;
  if (count != 0) copied.assign(values, values + count);
  for (uint64_t i = 0; i < count; ++i)
    check(copied[i] >= 0, argument, "[", i, "] is ", copied[i], "; 0 and more are accepted");
  return copied;
}

int64_t product(const char* argument, const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes)
    check(!__builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements), argument,
          " have more elements than an int64_t can count");
  return std::find(sizes.begin(), sizes.end(), 0) == sizes.end() ? elements : 0;
}

/// Of a tensor in contiguous memory.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

/// The last element of the view is one that the storage has, as far as its sizes are known.
void check_within_storage(const aclTensor& tensor) {
  if (product("viewDims", tensor.sizes) == 0) return;
  int64_t last = tensor.offset;
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    int64_t way = 0;
    check(!__builtin_mul_overflow(tensor.sizes[d] - 1, tensor.strides[d], &way) &&
              !__builtin_add_overflow(last, way, &last) && last < kMostElements,
          "stride[", d, "] is ", tensor.strides[d],
          ", with which no int64_t counts the bytes of the storage");
  }
  if (tensor.storage_sizes.empty()) return;
  const int64_t elements = product("storageDims", tensor.storage_sizes);
  check(last < elements, "viewDims, stride and offset reach element ", last, ", but storageDims have ",
        elements, " elements");
}

aclTensor described(const int64_t* view_dims, uint64_t view_dims_num, aclDataType type, const int64_t* stride,
                    int64_t offset, aclFormat format, const int64_t* storage_dims, uint64_t storage_dims_num,
                    void* data) {
  check(abi::find_data_type(type) != nullptr, "dataType is ", type,
        "; the values of aclDataType but ACL_DT_UNDEFINED are accepted");
  check(offset >= 0, "offset is ", offset, "; 0 and more are accepted");
  aclTensor tensor = {.type = type,
                      .format = format,
                      .sizes = dims("viewDims", view_dims, view_dims_num),
                      .strides = {},
                      .offset = offset,
                      .storage_sizes = dims("storageDims", storage_dims, storage_dims_num),
                      .storage = data};
  (void)product("viewDims", tensor.sizes);
  tensor.strides =
      stride != nullptr ? dims("stride", stride, view_dims_num) : contiguous_strides(tensor.sizes);
  check_within_storage(tensor);
  return tensor;
}

aclScalar scalar_at(const void* value, aclDataType type) {
  abi::check(value != nullptr, ACLNN_ERR_PARAM_NULLPTR, "value is null; the address of a number is accepted");
  const size_t size = aclDataTypeSize(type);
  check(size != 0, "dataType is ", type, "; the types of numbers that have whole bytes are accepted");
  aclScalar scalar = {type, {}};
  std::memcpy(scalar.bytes.data(), value, size);
  return scalar;
}

template <class Object>
Object* made(Object value) {
  return static_cast<Object*>(new_handle(std::make_shared<Object>(std::move(value))));
}

/// An array, or a list of handles, of `size` values.
template <class Object, class T>
Object* array_of(const T* values, uint64_t size) {
  abi::check(values != nullptr || size == 0, ACLNN_ERR_PARAM_NULLPTR, "value is null, but size is ", size);
  return made(Object{decltype(Object::values)(values, values + size)});
}

template <class List, class T>
List* list_of(const T* const* values, uint64_t size) {
  for (uint64_t i = 0; values != nullptr && i < size; ++i)
    (void)object(values[i], concat("value[", i, "]").c_str());
  return array_of<List>(values, size);
}

template <class T>
aclnnStatus destroy(const char* function, const T* handle, const char* argument) {
  return aclnn::call(function, [&] {
    (void)object(handle, argument);
    (void)take_handle(KindOf<T>::value, handle, argument);
  });
}

template <class List>
aclnnStatus destroy_with_members(const char* function, const List* list) {
  return aclnn::call(function, [&] {
    const auto found = object(list, "array");
    (void)take_handle(KindOf<List>::value, list, "array");
    for (const auto* member : found->values) drop_handle(member);
  });
}

template <class T>
aclnnStatus get_size(const char* function, const T* handle, const char* argument, uint64_t* size) {
  return aclnn::call(function, [&] { aclnn::out(size, "size") = object(handle, argument)->values.size(); });
}

/// Gives the caller a copy to delete.
void give(const std::vector<int64_t>& from, const char* argument, int64_t** values,
          const char* count_argument, uint64_t* count) {
  int64_t*& place = aclnn::out(values, argument);
  aclnn::out(count, count_argument) = from.size();
  place = new int64_t[from.size()];
  std::copy(from.begin(), from.end(), place);
}

}  // namespace

extern "C" {

aclnnStatus aclnnInit(const char*) {
  return aclnn::call("aclnnInit", [] {});
}

aclnnStatus aclnnFinalize() {
  return aclnn::call("aclnnFinalize", [] {});
}

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t* stride, int64_t offset, aclFormat format,
                           const int64_t* storageDims, uint64_t storageDimsNum, void* tensorData) {
  aclTensor* tensor = nullptr;
  aclnn::call("aclCreateTensor", [&] {
    tensor = made(described(viewDims, viewDimsNum, dataType, stride, offset, format, storageDims,
                            storageDimsNum, tensorData));
  });
  return tensor;
}

aclnnStatus aclInitTensor(aclTensor* tensor, const int64_t* viewDims, uint64_t viewDimsNum,
                          aclDataType dataType, const int64_t* stride, int64_t offset, aclFormat format,
                          const int64_t* storageDims, uint64_t storageDimsNum, void* tensorDataAddr) {
  return aclnn::call("aclInitTensor", [&] {
    *object(tensor, "tensor") = described(viewDims, viewDimsNum, dataType, stride, offset, format,
                                          storageDims, storageDimsNum, tensorDataAddr);
  });
}

aclScalar* aclCreateScalar(void* value, aclDataType dataType) {
  aclScalar* scalar = nullptr;
  aclnn::call("aclCreateScalar", [&] { scalar = made(scalar_at(value, dataType)); });
  return scalar;
}

aclIntArray* aclCreateIntArray(const int64_t* value, uint64_t size) {
  aclIntArray* array = nullptr;
  aclnn::call("aclCreateIntArray", [&] { array = array_of<aclIntArray>(value, size); });
  return array;
}

aclFloatArray* aclCreateFloatArray(const float* value, uint64_t size) {
  aclFloatArray* array = nullptr;
  aclnn::call("aclCreateFloatArray", [&] { array = array_of<aclFloatArray>(value, size); });
  return array;
}

aclBoolArray* aclCreateBoolArray(const bool* value, uint64_t size) {
  aclBoolArray* array = nullptr;
  aclnn::call("aclCreateBoolArray", [&] { array = array_of<aclBoolArray>(value, size); });
  return array;
}

aclTensorList* aclCreateTensorList(const aclTensor* const* value, uint64_t size) {
  aclTensorList* list = nullptr;
  aclnn::call("aclCreateTensorList", [&] { list = list_of<aclTensorList>(value, size); });
  return list;
}

aclScalarList* aclCreateScalarList(const aclScalar* const* value, uint64_t size) {
  aclScalarList* list = nullptr;
  aclnn::call("aclCreateScalarList", [&] { list = list_of<aclScalarList>(value, size); });
  return list;
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  return destroy("aclDestroyTensor", tensor, "tensor");
}

aclnnStatus aclDestroyScalar(const aclScalar* scalar) {
  return destroy("aclDestroyScalar", scalar, "scalar");
}

aclnnStatus aclDestroyIntArray(const aclIntArray* array) {
  return destroy("aclDestroyIntArray", array, "array");
}

aclnnStatus aclDestroyFloatArray(const aclFloatArray* array) {
  return destroy("aclDestroyFloatArray", array, "array");
}

aclnnStatus aclDestroyBoolArray(const aclBoolArray* array) {
  return destroy("aclDestroyBoolArray", array, "array");
}

aclnnStatus aclDestroyTensorList(const aclTensorList* array) {
  return destroy_with_members("aclDestroyTensorList", array);
}

aclnnStatus aclDestroyScalarList(const aclScalarList* array) {
  return destroy_with_members("aclDestroyScalarList", array);
}

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return aclnn::call("aclGetViewShape", [&] {
    give(object(tensor, "tensor")->sizes, "viewDims", viewDims, "viewDimsNum", viewDimsNum);
  });
}

aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims, uint64_t* storageDimsNum) {
  return aclnn::call("aclGetStorageShape", [&] {
    give(object(tensor, "tensor")->storage_sizes, "storageDims", storageDims, "storageDimsNum",
         storageDimsNum);
  });
}

aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue, uint64_t* stridesNum) {
  return aclnn::call("aclGetViewStrides", [&] {
    give(object(tensor, "tensor")->strides, "stridesValue", stridesValue, "stridesNum", stridesNum);
  });
}

aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return aclnn::call("aclGetViewOffset",
                     [&] { aclnn::out(offset, "offset") = object(tensor, "tensor")->offset; });
}

aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return aclnn::call("aclGetFormat",
                     [&] { aclnn::out(format, "format") = object(tensor, "tensor")->format; });
}

aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  return aclnn::call("aclGetDataType",
                     [&] { aclnn::out(dataType, "dataType") = object(tensor, "tensor")->type; });
}

aclnnStatus aclGetIntArraySize(const aclIntArray* array, uint64_t* size) {
  return get_size("aclGetIntArraySize", array, "array", size);
}

aclnnStatus aclGetFloatArraySize(const aclFloatArray* array, uint64_t* size) {
  return get_size("aclGetFloatArraySize", array, "array", size);
}

aclnnStatus aclGetBoolArraySize(const aclBoolArray* array, uint64_t* size) {
  return get_size("aclGetBoolArraySize", array, "array", size);
}

aclnnStatus aclGetTensorListSize(const aclTensorList* tensorList, uint64_t* size) {
  return get_size("aclGetTensorListSize", tensorList, "tensorList", size);
}

aclnnStatus aclGetScalarListSize(const aclScalarList* scalarList, uint64_t* size) {
  return get_size("aclGetScalarListSize", scalarList, "scalarList", size);
}

}  // extern "C"
