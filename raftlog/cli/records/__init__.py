"""Records on the command line: parsing input, formatting output."""
