"""Explanations of partitions, groups and transactions: facts of several nodes in, causes and remedies out."""
