"""Unit tests of `metadata/commands/`."""
