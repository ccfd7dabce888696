"""Record batches: format, columns, compression, and filters for compaction."""
