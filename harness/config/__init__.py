"""Hydra schema, composition, and checks of values and combinations. Only this package knows Hydra."""
