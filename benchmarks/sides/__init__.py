"""The halves of benchmarks that run in a framework's environment."""
