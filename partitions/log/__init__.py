"""One partition's log: batches in memory, segments, and jobs that bring the files up to date on a worker."""
