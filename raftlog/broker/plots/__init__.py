"""The last day of a node's main numbers, for plots without a monitoring system."""
