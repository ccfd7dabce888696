"""Provenance of a result: the code that made it, and whether that code is still the present one."""
