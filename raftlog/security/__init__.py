"""Principals, access rules and the decision about a request. Pure; shared by brokers, the API and the command line."""
