"""Unit tests of `jepsen_like/histories/`."""
