"""The pages that `generate.py` draws from something else than the tables of the rules."""
