"""Spark sessions, clusters, queries and programs for the tests of the source and the sink."""
