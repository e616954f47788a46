"""Recording of resources other than time: devices, memory, network, files."""
