"""Consumer groups as agreed facts: who is in them, who owns which partition, what is committed. Pure."""
