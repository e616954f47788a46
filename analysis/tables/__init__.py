"""Runs into points and series: identity, throughput, warnings."""
