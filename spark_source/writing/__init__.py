"""The sink: exactly-once writes of micro-batches."""
