"""How fast the lake is, beside what the same machine does without it: `python -m bench`."""
