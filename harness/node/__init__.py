"""The part that runs on compute nodes outside the framework's environment."""
