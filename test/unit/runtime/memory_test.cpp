#include "runtime/memory.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "base/error.h"
#include "runtime/device.h"

namespace anynpu {
namespace {

TEST(Memory, CopiesAndFillsOfEverySizeClass) {
  Device& device = Device::get(0);
  Stream& stream = device.default_stream();
  for (size_t size : {size_t{1}, size_t{4097}, size_t{1} << 20, (size_t{9} << 20) + 3}) {
    std::vector<unsigned char> source(size), result(size);
    std::iota(source.begin(), source.end(), 0);
    void* memory = device.arena().allocate(size);
    copy_async(memory, source.data(), size, stream);
    copy_async(result.data(), memory, size, stream);
    stream.synchronize();
    EXPECT_EQ(result, source);
    fill_async(memory, 0x5a, size, stream);
    copy_async(result.data(), memory, size, stream);
    stream.synchronize();
    EXPECT_EQ(result, std::vector<unsigned char>(size, 0x5a));
    device.arena().free(memory);
  }
}

TEST(Memory, PlacesAreKnown) {
  Device& device = Device::get(0);
  void* on_device = device.arena().allocate(100);
  auto* pinned = static_cast<char*>(allocate_pinned(10000));
  int local = 0;
  EXPECT_EQ(place_of(on_device), MemoryPlace::kDevice);
  EXPECT_EQ(place_of(pinned + 9999), MemoryPlace::kPinnedHost);
  EXPECT_EQ(find_pinned(pinned + 17), pinned);
  EXPECT_EQ(place_of(pinned + 10000), MemoryPlace::kHost);
  EXPECT_EQ(place_of(&local), MemoryPlace::kHost);
  free_pinned(pinned);
  EXPECT_EQ(place_of(pinned), MemoryPlace::kHost);
  EXPECT_THROW(free_pinned(pinned), Error);
  EXPECT_THROW(free_pinned(&local), Error);
  EXPECT_THROW(allocate_pinned(0), Error);
  EXPECT_THROW(allocate_pinned(size_t{1} << 60), Error);
  device.arena().free(on_device);
}

TEST(Memory, CopyKindsAndBoundsAreChecked) {
  Device& device = Device::get(0);
  char host[64] = {};
  auto* memory = static_cast<char*>(device.arena().allocate(Arena::kPage));
  using enum CopyKind;
  EXPECT_NO_THROW(check_copy({memory, host, 64}, kHostToDevice));
  EXPECT_NO_THROW(check_copy({host, memory, 64}, kDefault));
  EXPECT_NO_THROW(check_copy({nullptr, nullptr, 0}, kHostToHost));
  const auto message = [](void* to, void* from, size_t bytes, CopyKind kind) -> std::string {
    try {
      check_copy({to, from, bytes}, kind);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message(memory, host, 64, kDeviceToHost).find("dst"), std::string::npos);
  EXPECT_NE(message(memory, host, 64, kDeviceToDevice).find("src"), std::string::npos);
  EXPECT_NE(message(host, host, 64, kHostToDevice).find("host to device"), std::string::npos);
  EXPECT_NE(message(memory + 4000, host, 200, kHostToDevice).find("ends after 96"), std::string::npos);
  EXPECT_NE(message(nullptr, host, 1, kHostToDevice).find("null"), std::string::npos);
  device.arena().free(memory);
  EXPECT_NE(message(memory, host, 64, kHostToDevice).find("no live allocation"), std::string::npos);
}

}  // namespace
}  // namespace anynpu
