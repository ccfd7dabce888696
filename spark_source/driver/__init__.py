"""Reading on Spark's driver: planning of batch and streaming queries."""
