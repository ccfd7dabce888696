"""Producing: accumulator, sequencer, sender."""
