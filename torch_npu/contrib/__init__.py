"""Help for programs that were written for another device."""
