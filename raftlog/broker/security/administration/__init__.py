"""Changes of users, tokens, rules and quotas."""
