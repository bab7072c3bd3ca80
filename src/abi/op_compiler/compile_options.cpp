// Options of the compilation of operators, of acl_op_compiler.h.

#include <array>
#include <cstring>
#include <mutex>
#include <string>

#include "abi/call.h"
#include "acl/acl_op_compiler.h"
#include "base/fork.h"

using namespace anynpu;

namespace {

constexpr size_t kOptions = ACL_OP_DEBUG_OPTION + 1, kMostBytes = 4096;

struct Options {
  std::mutex mutex;
  std::array<std::string, kOptions> texts;  // empty: not set

  Options() { texts[ACL_OP_JIT_COMPILE] = "disable"; }  // one kernel serves all shapes
};

/// Made when the library is loaded: no fork can find it half made. Outlives every thread.
Options& options = []() -> Options& {
  auto* made = new Options;
  hold_in_forks(made->mutex);
  return *made;
}();

size_t checked(aclCompileOpt opt) {
  abi::check(opt >= ACL_PRECISION_MODE && opt <= ACL_OP_DEBUG_OPTION, ACL_ERROR_INVALID_PARAM, "opt is ", opt,
             "; the constants of aclCompileOpt are accepted");
  return static_cast<size_t>(opt);
}

std::string text_of(aclCompileOpt opt) {
  const size_t option = checked(opt);
  std::lock_guard lock(options.mutex);
  return options.texts[option];
}

}  // namespace

extern "C" {

aclError aclSetCompileopt(aclCompileOpt opt, const char* value) {
  return abi::call("aclSetCompileopt", [&] {
    const size_t option = checked(opt);
    abi::check(value != nullptr, ACL_ERROR_INVALID_PARAM, "value is null; a text is accepted");
    const size_t length = strnlen(value, kMostBytes + 1);
    abi::check(length <= kMostBytes, ACL_ERROR_INVALID_PARAM, "value is longer than ", kMostBytes, " bytes");
    std::string text(value, length);
    std::lock_guard lock(options.mutex);
    options.texts[option] = std::move(text);
  });
}

size_t aclGetCompileoptSize(aclCompileOpt opt) {
  return abi::call_or(0, "aclGetCompileoptSize", [&] { return text_of(opt).size() + 1; });
}

aclError aclGetCompileopt(aclCompileOpt opt, char* value, size_t length) {
  return abi::call("aclGetCompileopt", [&] {
    const std::string text = text_of(opt);
    char& place = abi::out(value, "value");
    abi::check(length > text.size(), ACL_ERROR_INVALID_PARAM, "length is ", length, "; the text has ",
               text.size() + 1, " bytes with its end");
    std::memcpy(&place, text.c_str(), text.size() + 1);
  });
}

}  // extern "C"
