"""Opening logs at a start: replica folders, and many logs in batches."""
