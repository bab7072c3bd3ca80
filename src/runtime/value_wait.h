#pragma once

#include <cstdint>

namespace anynpu {

class Stream;

/// What a value in memory must be, compared with one that is given.
enum class ValueTest : uint8_t {
  kAtLeast,          ///< their difference, as a signed number, is not negative
  kEqual,            ///< equal
  kAnyCommonBit,     ///< a bit is set in both
  kAnyBitInNeither,  ///< a bit is set in neither
};

/// Enqueues writing `value` to device memory, in one piece.
void write_value_async(uint64_t* address, uint64_t value, Stream& stream);

/// Work enqueued later on the stream starts once the value at `address`, device memory, passes the test. No
/// thread is held meanwhile; whatever writes the value, in this process or another, need not announce it. A
/// wait whose memory is freed is over.
void wait_for_value_async(const uint64_t* address, ValueTest test, uint64_t value, Stream& stream);

}  // namespace anynpu
