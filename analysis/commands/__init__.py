"""The commands of `python -m analysis`, a module each; COMMANDS of analysis/__main__.py names them."""
