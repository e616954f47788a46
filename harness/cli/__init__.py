"""The commands beside a sweep: status, cancel, shards; and what the terminal shows."""
