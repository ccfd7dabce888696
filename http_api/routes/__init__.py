"""The handlers of the API's routes."""
