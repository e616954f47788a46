"""The part of the harness that runs in a framework's environment, one process per GPU: measuring loop and adapters."""
