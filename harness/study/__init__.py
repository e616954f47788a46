"""The results folder of a study: opening and locking it, its submissions, and the status of every run."""
