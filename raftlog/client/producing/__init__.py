"""The producer: batches, sequence numbers, retries and deliveries."""
