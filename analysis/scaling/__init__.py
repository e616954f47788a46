"""Scaling laws: what throughput to expect on numbers of GPUs that were not measured (docs/prediction.md)."""
