"""Checks before and during training: the GPU, the network, the first step."""
