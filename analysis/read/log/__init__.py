"""The event log of one rank."""
