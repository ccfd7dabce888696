"""Record batches: format, columns, compression, filters."""
