"""Measures of runs and points: speedup, breakdown, cost, learning and more."""
