"""Data for every framework alike: where a data set lies, its readers, the order of samples, batches.

Import the modules themselves; this package imports nothing, so that the login node can ask `locate` without NumPy.
"""
