"""Mutation testing: small faults are put into the product, one at a time, and the tests must detect each."""
