"""What runs on a compute node outside the framework's environment."""
