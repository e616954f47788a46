"""Estimates with their intervals, and tests of stability. No wording."""
