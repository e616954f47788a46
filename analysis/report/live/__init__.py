"""`python -m analysis serve`: running studies in a browser."""
