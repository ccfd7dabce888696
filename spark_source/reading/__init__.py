"""The pure part of reading: which offsets a batch covers, and how they are split into tasks."""
