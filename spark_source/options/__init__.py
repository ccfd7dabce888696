"""Options of the source and the sink: names and values."""
