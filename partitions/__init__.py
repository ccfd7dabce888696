"""One broker's replicas and their logs: replication, fetches, storage, recovery and upkeep."""
