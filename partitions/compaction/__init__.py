"""Log compaction: the records that stay, the pass over sealed segments, and the cleaned files."""
