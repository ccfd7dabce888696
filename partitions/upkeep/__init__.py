"""Background work on replicas: ticks, disk room, compaction, scrubbing, repair, resets, transaction checks."""
