"""The deterministic state machine of the metadata log."""
