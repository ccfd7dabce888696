"""The shell of one replica: events go into the core, its effects are performed on the log."""
