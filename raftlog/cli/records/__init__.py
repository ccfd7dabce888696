"""Records on the command line: parsing of input, formatting of output."""
