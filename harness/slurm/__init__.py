"""Slurm: one client for its programs, whose answers it returns as values, and its energy accounting."""
