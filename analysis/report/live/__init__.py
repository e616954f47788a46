"""`python -m analysis serve`: studies as they run, in a browser."""
