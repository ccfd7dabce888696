"""The top floor: one node put together from metadata, partitions and http_api."""
