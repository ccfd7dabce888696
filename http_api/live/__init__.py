"""Documents that are sent again whenever they change: one computation for all who watch the same."""
