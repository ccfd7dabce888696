"""Histories: operations, files, formats of other projects."""
