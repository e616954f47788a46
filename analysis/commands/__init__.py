"""The commands of `python -m analysis`, one module each, as listed in COMMANDS of analysis/__main__.py."""
