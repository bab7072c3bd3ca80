#include "base/log.h"

#include <unistd.h>

#include <string>

#include "base/error.h"
#include "base/options.h"

namespace anynpu {
namespace {

Option verbose_option("ANYNPU_VERBOSE", "0", "1: a line on standard error for each call of the C interface");
Option level_option("ASCEND_GLOBAL_LOG_LEVEL", "3",
                    "messages of the application (aclAppLog) to show: 0 from debug, 1 from info, 2 from "
                    "warning, 3 errors, 4 none");

}  // namespace

bool verbose() {
  static const bool verbose = verbose_option.flag();
  return verbose;
}

bool logged(LogLevel level) {
  static const int64_t least = level_option.integer();
  return static_cast<int64_t>(level) >= least;
}

void write_line(std::string_view text) noexcept try {
  std::string line(text);
  line += '\n';
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
} catch (...) {  // no memory for the copy
}

}  // namespace anynpu
