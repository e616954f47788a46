"""Which steps are timed, and when enough were: the same decision in the worker and for the user's own training."""
