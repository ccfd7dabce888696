"""The version of the package, and the feature level that this code supports."""

__version__ = "0.1.0"

FEATURE_LEVEL = 7
"""Highest feature level that this code supports.

The quorum holds the cluster's finalized level. A command above that level is never proposed, and a node that receives
one it cannot decode stops with an error.

* Level 2: groups, throttled reassignments.
* Level 3: transactions.
* Level 4: a reassignment in progress can be replaced by another.
* Level 5: a `min.insync.replicas` above the size of the commit set does not block recovery; topics have a creation
  index; the cluster has a time; a leadership can restart in a new epoch; a registration names the one that it replaces.
* Level 6: users, tokens, access rules and quotas; owners of groups, transactional ids, blocks, positions, producer ids;
  an operator aborts transactions of ids that were never granted.
* Level 7: topics are restored from backups.
"""
