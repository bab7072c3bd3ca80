#pragma once

#include <mutex>

namespace anynpu {

/// Makes every fork take place while `mutex`, which must live for ever, is held: what it guards is whole in
/// the child, where it is free. For mutexes with which no other such mutex is held.
void hold_in_forks(std::mutex& mutex);

}  // namespace anynpu
