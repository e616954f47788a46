"""Which steps are timed, when enough were, and on what: the same in the worker and for the user's own training."""
