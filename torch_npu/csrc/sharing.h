#pragma once

#include <c10/core/Storage.h>

#include <string>

namespace torch_npu {

/// Lends the memory of an npu storage (of 1 byte or more) to another process; the key that it borrows it by
/// (see anynpu::lend). Waits, interruptibly, for the work that all streams have now. Raises for memory that
/// is no block of this process's pools, such as a borrowed one.
std::string lend_storage(const c10::Storage& storage);

/// The storage of `bytes` bytes that a process lent under `key`, on the device of that index; the one that
/// there is here where it was borrowed before. It cannot be resized. Raises what BorrowedMemory does.
c10::Storage borrow_storage(const std::string& key, int device, size_t bytes);

/// Makes memory available that was lent and given back, and freed here.
void collect_lent_memory();

}  // namespace torch_npu
