"""The durable Raft log: journal, snapshot file, witness and recovery."""
