"""Histories: operations, files, and the formats of other projects."""
