"""Log compaction: which records are kept, and the cleaned segment files."""
