"""Push streams between brokers: frames, the leader's senders, the follower's receivers."""
