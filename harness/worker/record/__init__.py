"""What a run records besides its time: devices, memory, network, files."""
