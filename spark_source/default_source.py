"""`pyspark_raftlog` in an installed wheel: Spark looks at modules of such names by itself, and registers what they call
`DefaultSource`. So `format("raftlog")` works without a line of registration.

An error in here would break the looking up of *every* source; nothing heavy is imported.
"""

from spark_source.source import RaftlogSource as DefaultSource

__all__ = ["DefaultSource"]
