"""Producer state of a log: sequence numbers, open transactions, aborted ranges, control batches."""
