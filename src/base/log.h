#pragma once

#include <string_view>

namespace anynpu {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Option ANYNPU_VERBOSE: whether to write a line for each operation.
bool verbose();

/// Whether messages of `level` are written: from option ASCEND_GLOBAL_LOG_LEVEL on.
bool logged(LogLevel level);

/// Writes one line to standard error in one piece, so that lines of threads do not mix. Never fails: what
/// cannot be written is dropped.
void write_line(std::string_view text) noexcept;

}  // namespace anynpu
