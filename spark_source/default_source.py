"""`pyspark_raftlog` in an installed wheel: Spark imports modules with such names by itself, and registers their
`DefaultSource`. So `format("raftlog")` works without a registration.

An error in this module would break the lookup of *every* source, so it imports nothing heavy.
"""

from spark_source.source import RaftlogSource as DefaultSource

__all__ = ["DefaultSource"]
