"""The logs that are not in service: replica folders, opening and closing in batches, removal."""
