#pragma once

#include <c10/core/Event.h>
#include <c10/core/Storage.h>

#include <memory>
#include <string>

#include "runtime/handles.h"

namespace torch_npu {

/// Lends the memory of an npu storage (of 1 byte or more) to another process; the key that it borrows it by
/// (see anynpu::lend). Waits, interruptibly, for the work that all streams have now. Raises for memory that
/// is no block of this process's pools, such as a borrowed one.
std::string lend_storage(const c10::Storage& storage);

/// The storage of `bytes` bytes that a process lent under `key`, on the device of that index; the one that
/// there is here where it was borrowed before. It cannot be resized. Raises what BorrowedMemory does.
c10::Storage borrow_storage(const std::string& key, int device, size_t bytes);

/// Makes memory available that was lent and given back, and freed here. Waits until what this process
/// dropped of others is given back, which comes after the work that streams have.
void collect_lent_memory();

/// An event that other processes can open, and the one that another process made, by its handle of 64 bytes
/// (raises c10::TypeError for another number of them, else what SharedEvent::import() does).
std::shared_ptr<anynpu::HandledEvent> new_shared_event();
std::shared_ptr<anynpu::HandledEvent> open_shared_event(const std::string& handle);
/// The handle by which other processes open an event. Raises for one that is of this process alone, or of
/// another one.
std::string event_ipc_handle(const c10::Event& event);

}  // namespace torch_npu
