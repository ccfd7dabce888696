"""Unit tests of `jepsen_like/checkers/`."""
