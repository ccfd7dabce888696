"""The form of a node's metrics: Prometheus's text, and OpenMetrics."""
