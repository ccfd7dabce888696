"""The port that a broker implements for this API."""
