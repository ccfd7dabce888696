"""Reading on Spark's executors."""
