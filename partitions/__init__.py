"""One replica and its log: leader and follower cores, segments, recovery, the replication protocol."""
