"""What a rank checks before and while it trains: the GPU, the network, the first step."""
