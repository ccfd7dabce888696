"""Unit tests of `metadata/quorum_thread/`."""
