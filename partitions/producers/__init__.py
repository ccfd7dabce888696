"""Producer state of one partition: sequence numbers, open transactions, aborted ranges, and their snapshots."""
