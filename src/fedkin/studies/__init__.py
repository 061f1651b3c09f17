"""Runs, one or many: compare, vary, tune."""
