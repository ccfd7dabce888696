"""The numbers that a node measures: histograms, families, and the catalogue of their names."""
