"""Runs of real or simulated clusters: the interpreter, its client processes, the verdicts."""
