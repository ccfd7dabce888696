"""The Raft log on disk: entries, snapshots, recovery."""
