"""One node, assembled from metadata, partitions and http_api."""
