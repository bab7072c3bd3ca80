#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace anynpu {

/// One environment variable that changes what the library does. Options are objects with static storage
/// duration; defining one registers it, so `anynpu options` and docs/options.md list every one there is.
class Option {
 public:
  Option(const char* name, const char* fallback, const char* help);
  Option(const Option&) = delete;

  const char* name() const { return name_; }
  const char* fallback() const { return fallback_; }  ///< taken where the variable is unset or empty
  const char* help() const { return help_; }

  /// The variable's text at the time of the call, or the fallback. Callers on a hot path keep the result.
  std::string text() const;
  /// The value as an integer; accepts the suffixes K, M, G, T (powers of 1024). Raises kInvalidArgument with
  /// the variable's name and text when it is not one, or is below `least`.
  int64_t integer(int64_t least = 0) const;
  bool flag() const;  ///< true for 1, true, on, yes; false for 0, false, off, no and empty

 private:
  const char *name_, *fallback_, *help_;
};

/// Every option of the libraries loaded so far, sorted by name.
std::vector<const Option*> all_options();

}  // namespace anynpu
