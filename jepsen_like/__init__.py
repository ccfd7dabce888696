"""The fault suite: simulator, histories, nemeses, checkers."""
