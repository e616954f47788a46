"""Columns of a run, each from its part of the log."""
