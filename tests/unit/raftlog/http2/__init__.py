"""Unit tests of `raftlog/http2/`."""
