"""The pure core of one replica: leader, follower, ISR and transactions; events and the time in, effects out."""
