#pragma once

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "abi/aclnn/objects.h"
#include "aclnn/aclnn_base.h"
#include "ops/iteration.h"
#include "runtime/arena.h"
#include "unit/abi/abi_test.h"
#include "unit/ops/elements.h"

namespace anynpu::aclnn {

using ops::Elements;
using tile::DType;
using Sizes = std::vector<int64_t>;

inline aclDataType published_type(DType dtype) {
  constexpr aclDataType kTypes[] = {ACL_BOOL,  ACL_UINT8,   ACL_INT8, ACL_INT16, ACL_INT32,
                                    ACL_INT64, ACL_FLOAT16, ACL_BF16, ACL_FLOAT, ACL_DOUBLE};
  return kTypes[static_cast<int>(dtype)];
}

inline void succeed(aclError status) { EXPECT_EQ(status, ACL_SUCCESS) << aclGetRecentErrMsg(); }

/// How a tensor lies: in elements.
struct Layout {
  Sizes strides;
  int64_t offset = 0;
};

/// Device memory ends where a page begins that faults, also in compiled kernels.
inline const int kDebugMemory = ::setenv("ANYNPU_DEBUG_MEMORY", "1", 0);

/// A tensor in device memory of its own, at the very end of it, and its description.
class TestTensor {
 public:
  TestTensor(DType dtype, Sizes sizes, Layout layout)
      : dtype_(dtype),
        view_{dtype, nullptr, std::move(sizes), std::move(layout.strides)},
        offset_(layout.offset) {
    bytes_ = static_cast<size_t>(view_.span()) + static_cast<size_t>(offset_) * tile::size_of(dtype);
    if (bytes_ != 0) {
      constexpr size_t kAlignment = Arena::kAlignment;
      const size_t allocated = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
      succeed(aclrtMalloc(&allocation_, allocated, ACL_MEM_MALLOC_NORMAL_ONLY));
      memory_ = static_cast<char*>(allocation_) + (allocated - bytes_);
      succeed(aclrtMemset(memory_, bytes_, 0, bytes_));
    }
    const auto storage = static_cast<int64_t>(bytes_ / tile::size_of(dtype));
    handle_ = aclCreateTensor(view_.sizes.data(), view_.sizes.size(), published_type(dtype),
                              view_.strides.data(), offset_, ACL_FORMAT_ND, &storage, 1, memory_);
    EXPECT_NE(handle_, nullptr) << aclGetRecentErrMsg();
  }
  TestTensor(DType dtype, const Sizes& sizes, const std::vector<double>& values = {})
      : TestTensor(dtype, sizes, Layout{ops::contiguous(dtype, nullptr, sizes).strides}) {
    if (!values.empty()) set(values);
  }
  ~TestTensor() {
    EXPECT_EQ(aclDestroyTensor(handle_), ACL_SUCCESS);
    if (allocation_ != nullptr) succeed(aclrtFree(allocation_));
  }
  TestTensor(const TestTensor&) = delete;

  operator aclTensor*() const { return handle_; }  // NOLINT(google-explicit-constructor): an argument
  DType dtype() const { return dtype_; }
  void* memory() const { return memory_; }
  const Sizes& sizes() const { return view_.sizes; }
  size_t count() const { return static_cast<size_t>(view_.elements()); }

  void set(const std::vector<double>& values) {
    Elements storage = downloaded();
    for (size_t i = 0; i < count(); ++i) {
      if (ops::is_integer(dtype_))
        storage.set<int64_t>(place(i), static_cast<int64_t>(values[i]));
      else
        storage.set<double>(place(i), values[i]);
    }
    if (bytes_ != 0) succeed(aclrtMemcpy(memory_, bytes_, storage.data(), bytes_, ACL_MEMCPY_HOST_TO_DEVICE));
  }
  std::vector<double> values() const {
    Elements storage = downloaded();
    std::vector<double> read;
    for (size_t i = 0; i < count(); ++i) read.push_back(storage.get<double>(place(i)));
    return read;
  }

 private:
  size_t place(size_t i) const {
    auto rest = static_cast<int64_t>(i), at = offset_;
    for (size_t d = view_.sizes.size(); d-- > 0; rest /= view_.sizes[d])
      at += rest % view_.sizes[d] * view_.strides[d];
    return static_cast<size_t>(at);
  }
  Elements downloaded() const {
    Elements storage(dtype_, bytes_ / tile::size_of(dtype_));
    if (bytes_ != 0) succeed(aclrtMemcpy(storage.data(), bytes_, memory_, bytes_, ACL_MEMCPY_DEVICE_TO_HOST));
    return storage;
  }

  const DType dtype_;
  ops::View view_;
  const int64_t offset_;
  size_t bytes_ = 0;
  void *allocation_ = nullptr, *memory_ = nullptr;
  aclTensor* handle_ = nullptr;
};

class TestScalar {
 public:
  template <class T>
  TestScalar(T value, aclDataType type) : handle_(aclCreateScalar(&value, type)) {
    EXPECT_NE(handle_, nullptr);
  }
  explicit TestScalar(double value) : TestScalar(value, ACL_DOUBLE) {}
  explicit TestScalar(int64_t value) : TestScalar(value, ACL_INT64) {}
  ~TestScalar() { EXPECT_EQ(aclDestroyScalar(handle_), ACL_SUCCESS); }
  TestScalar(const TestScalar&) = delete;
  operator aclScalar*() const { return handle_; }  // NOLINT(google-explicit-constructor): an argument

 private:
  aclScalar* handle_;
};

class AclnnTest : public AclTest {
 protected:
  /// Calls both functions of an operator, with the workspace it asks for, and waits.
  template <class First, class... Arguments>
  static aclnnStatus call(First first, aclnnStatus (*second)(void*, uint64_t, aclOpExecutor*, aclrtStream),
                          const Arguments&... arguments) {
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    if (const aclnnStatus status = first(arguments..., &size, &executor); status != ACL_SUCCESS)
      return status;
    void* workspace = nullptr;
    if (size != 0) succeed(aclrtMalloc(&workspace, size, ACL_MEM_MALLOC_NORMAL_ONLY));
    const aclnnStatus status = second(workspace, size, executor, nullptr);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
    if (size != 0) succeed(aclrtFree(workspace));
    return status;
  }

  static void expect_values(const TestTensor& tensor, const std::vector<double>& expected,
                            double relative = 0) {
    const std::vector<double> found = tensor.values();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::isnan(expected[i])) {
        EXPECT_TRUE(std::isnan(found[i])) << i;
      } else if (std::isinf(expected[i]) || relative == 0) {
        EXPECT_EQ(found[i], expected[i]) << i;
      } else {
        EXPECT_NEAR(found[i], expected[i], relative * std::max(1.0, std::abs(expected[i]))) << i;
      }
    }
  }
};

/// Both functions of an operator, to pass them on.
#define ANYNPU_PHASES(name) name##GetWorkspaceSize, name

}  // namespace anynpu::aclnn
