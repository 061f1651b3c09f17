"""A file a data set: `digits.py` is data set `digits`."""
