#include "base/options.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace anynpu {
namespace {

std::vector<const Option*>& registry() {
  static auto* options = new std::vector<const Option*>;  // outlives every static destructor
  return *options;
}

}  // namespace

Option::Option(const char* name, const char* fallback, const char* help)
    : name_(name), fallback_(fallback), help_(help) {
  registry().push_back(this);
}

std::string Option::text() const {
  const char* value = std::getenv(name_);
  return value != nullptr && *value != '\0' ? value : fallback_;
}

int64_t Option::integer(int64_t least) const {
  const std::string value = text();
  char* end = nullptr;
  errno = 0;
  int64_t number = std::strtoll(value.c_str(), &end, 10);
  bool valid = end != value.c_str() && errno == 0;
  if (valid && *end != '\0') {
    const char* suffixes = "KMGT";
    const char* suffix = std::strchr(suffixes, *end);
    const int shift = suffix != nullptr ? 10 * static_cast<int>(suffix - suffixes + 1) : 0;
    valid = suffix != nullptr && end[1] == '\0' &&
            std::abs(number) <= (std::numeric_limits<int64_t>::max() >> shift);
    if (valid) number *= int64_t{1} << shift;
  }
  require(valid && number >= least, ErrorCode::kInvalidArgument, "option ", name_, ": '", value,
          "' is not an integer of at least ", least, " (suffixes K, M, G, T are accepted)");
  return number;
}

bool Option::flag() const {
  const std::string value = text();
  for (const char* yes : {"1", "true", "on", "yes"})
    if (value == yes) return true;
  for (const char* no : {"", "0", "false", "off", "no"})
    if (value == no) return false;
  raise(ErrorCode::kInvalidArgument, "option ", name_, ": '", value,
        "' is not one of 0, 1, true, false, on, off, yes, no");
}

std::vector<const Option*> all_options() {
  auto options = registry();
  std::sort(options.begin(), options.end(),
            [](const Option* a, const Option* b) { return std::strcmp(a->name(), b->name()) < 0; });
  return options;
}

}  // namespace anynpu
