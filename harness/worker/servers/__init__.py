"""Parameter servers for every framework: processes next to the ranks that hold the weights, with NumPy and sockets."""
