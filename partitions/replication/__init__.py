"""Replication links between brokers: the protocol, the leader's pushes, the follower's receivers, the throttle."""
