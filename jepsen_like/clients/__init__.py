"""What client processes run: one class a workload, which does its operations with the public client (`process.py`)."""
