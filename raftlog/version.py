"""The version of the package and of the feature level that this code can speak."""

__version__ = "0.1.0"

FEATURE_LEVEL = 5
"""Highest feature level that this code understands. The quorum holds the finalized level of the cluster; a command
above that level is never proposed, and a node that meets one it cannot decode stops and says so. Level 2: groups,
throttled moves; level 3: transactions; level 4: a move that has begun can be replaced by another; level 5: a minimum
that was raised above the commit set holds up no recovery, topics know when they were created, the cluster has a time,
a leadership can begin anew, and a registration names the one whose place it takes."""
