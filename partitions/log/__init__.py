"""One log: segments in memory and on disk, pending writes, and the thread that writes them."""
