"""The files of one log on disk: segments, indexes, leader epochs, checkpoints, quarantined files, and durability."""
