"""The command `harness`: its tree of commands, its help, run, status, cancel, shards; what the terminal shows."""
