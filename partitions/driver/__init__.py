"""The shell of one replica: it passes events to the core and performs the core's effects on the log."""
