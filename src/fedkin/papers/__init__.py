"""The papers' settings and published values: data, and their reader."""
