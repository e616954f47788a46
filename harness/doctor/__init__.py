"""Checks what works on this machine and on the nodes, and what is missing."""
