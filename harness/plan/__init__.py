"""Turns a checked configuration into requests grouped by resource shape, with their memory and cost."""
