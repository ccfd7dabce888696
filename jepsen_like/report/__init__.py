"""What people read of a run: one HTML file that needs nothing else."""
