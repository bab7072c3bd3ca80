#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "abi/aclnn/objects.h"
#include "ops/iteration.h"
#include "ops/launch.h"

namespace anynpu::aclnn {

/// An argument of an operator as the C function got it. What it points to is read by prepare().
class Argument {
 public:
  using Value = std::variant<const aclTensor*, const aclTensorList*, const aclScalar*, const aclIntArray*,
                             const aclBoolArray*, const char*, int64_t, double, bool, aclDataType>;
  template <class T>
  Argument(const char* name, T value)  // NOLINT(google-explicit-constructor): generated code lists them
      : name_(name), value_(value), written_(std::is_same_v<T, aclTensor*>) {}

  const char* name() const { return name_; }
  const Value& value() const { return value_; }
  bool written() const { return written_; }  ///< a tensor that results are put into

 private:
  const char* name_;
  Value value_;
  bool written_;
};

/// A tensor of a call, from which on the description that it came from does not count.
struct BoundTensor {
  std::shared_ptr<const aclTensor> handed;
  ops::View view;  ///< its data is null while the address is not known
  int64_t offset;  ///< of its first element in its storage, in bytes
};

/// An argument that was read, or a member of a list of tensors. Absent where its name ends in Optional and it
/// was null.
struct Bound {
  const char* name;
  bool is_tensor, written;
  std::variant<std::monostate, BoundTensor, Number, std::vector<int64_t>, std::vector<bool>, std::string,
               int64_t, double, bool, tile::DType>
      value;

  bool given() const { return value.index() != 0; }
  const ops::View& view() const { return std::get<BoundTensor>(value).view; }
};

/// Device memory that a call brings for what is neither its operand nor its result, and what the host is to
/// do when its launches are done.
class Workspace {
 public:
  explicit Workspace(void* base) : base_(static_cast<std::byte*>(base)) {}
  void* take(int64_t bytes);
  /// take(), for the planners of src/ops; valid for the life of this.
  ops::TakeMemory taker() {
    return [this](int64_t bytes) { return take(bytes); };
  }
  uint64_t size() const { return size_; }  ///< of all that was taken

  /// Runs in the stream's order, after the launches, and writes no device memory.
  void after(std::function<void()> task) { after_ = std::move(task); }
  const std::function<void()>& after() const { return after_; }

 private:
  static constexpr uint64_t kAlignment = 64;
  std::byte* base_;
  uint64_t size_ = 0;
  std::function<void()> after_;
};

struct Call;
using Launches = std::vector<ops::Launch>;

/// How a call becomes launches, and the operator of src/ops that it is of.
struct Operator {
  const char* function;  ///< the second one
  Launches (*plan)(const Call&, Workspace&);
  std::string_view name;
};

/// All that a plan follows from. It checks types and shapes, and takes the same workspace for any addresses.
struct Call {
  Operator op;
  std::vector<Bound> arguments;

  bool addresses_known() const;
  const Bound& operator[](size_t i) const { return arguments[i]; }
};

/// The first of an operator's two functions: reads and checks the arguments, and plans the call.
aclnnStatus prepare(const char* function, const Operator& op, std::initializer_list<Argument> arguments,
                    uint64_t* workspace_size, aclOpExecutor** executor);
/// The second: enqueues what was prepared for the function of that name.
aclnnStatus run(const char* function, void* workspace, uint64_t workspace_size, aclOpExecutor* executor,
                aclrtStream stream);

}  // namespace anynpu::aclnn

/// A call that was prepared. Runs once, unless it is repeatable.
struct aclOpExecutor {
  explicit aclOpExecutor(anynpu::aclnn::Call call);

  /// Tensors as their function counts them, absent ones too: those that are read, written, or all.
  enum class Side : uint8_t { kRead, kWritten, kAll };
  void set_address(Side side, size_t index, const aclTensor* tensor, void* storage);
  void set_repeatable();
  /// Enqueues it. True where that was the only time.
  bool run(void* workspace, uint64_t size, aclrtStream stream);

  const char* function() const { return call_.op.function; }
  uint64_t workspace_size = 0;

 private:
  void check_addresses(std::optional<int> device) const;
  void check_usable() const;

  std::mutex mutex_;
  bool repeatable_ = false;           // guarded by mutex_
  anynpu::aclnn::Call call_;          // guarded by mutex_
  anynpu::aclnn::Launches launches_;  // guarded by mutex_
  std::function<void()> after_;       // guarded by mutex_
  bool planned_ = false;              // guarded by mutex_: launches_ are those of the addresses
  bool used_ = false;                 // guarded by mutex_: it ran, and is not repeatable
};
