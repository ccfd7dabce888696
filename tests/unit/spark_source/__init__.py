"""Unit tests of `spark_source/`."""
