"""The commands that may be proposed to the quorum, their results and their encoding."""
