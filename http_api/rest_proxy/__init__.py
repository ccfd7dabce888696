"""The APIs of the Confluent REST Proxy."""
