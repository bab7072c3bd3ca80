// Prints the options of the library as rows of a Markdown table.
#include <iostream>

#include "base/options.h"
#include "runtime/device.h"

int main() {
  (void)anynpu::device_count();  // keeps the library linked, whose static options register themselves
  for (const anynpu::Option* option : anynpu::all_options())
    std::cout << "| `" << option->name() << "` | "
              << (*option->fallback() != '\0' ? option->fallback() : "unset") << " | " << option->help()
              << " |\n";
}
