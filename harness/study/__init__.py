"""A study's results folder: opening and locking it, its submissions, and the status of every run."""
