"""What the harness asks of the operating system: programs, ports, disk space, variables with secrets."""
