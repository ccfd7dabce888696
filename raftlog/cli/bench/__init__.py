"""`raftlog bench`: worker processes, measurements, results."""
