"""The pure core of replication: leader, follower, ISR, and the effects that they ask for."""
