"""Measures the steps of a user's own training from inside its process.

Standard library only, Python 3.8 syntax: it runs in the user's environment, where its folder's parent is on PYTHONPATH.
"""
