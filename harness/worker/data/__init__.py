"""Data for every framework: readers, the order of samples, batches."""
