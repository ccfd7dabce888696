"""Runs against real or simulated clusters: the interpreter, its clients, the verdict."""
