"""Parameter servers: processes beside the ranks that hold the weights, for every framework. NumPy and sockets."""
