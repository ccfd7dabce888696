"""Tests of the programs in `docs/site/`."""
