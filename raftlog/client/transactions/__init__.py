"""Transactions of a producer: records, group offsets and named positions that commit together."""
