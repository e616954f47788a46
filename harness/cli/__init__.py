"""The command `harness`: its tree of commands, help, run, status, cancel, shards, and terminal output."""
