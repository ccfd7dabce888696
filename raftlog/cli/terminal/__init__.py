"""The terminal: options, output, progress, interrupts, exit codes."""
