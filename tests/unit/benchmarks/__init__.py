"""Unit tests of `benchmarks/`."""
