"""Pure decisions over records: placement, elections, balance, assignors, topic configuration."""
