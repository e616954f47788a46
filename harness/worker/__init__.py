"""What runs inside a framework's environment, one process per GPU: the measuring loop and its adapters."""
