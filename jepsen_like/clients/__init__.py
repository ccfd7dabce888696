"""Clients of the workloads: one class for each, which executes its operations with the public client."""
