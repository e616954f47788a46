"""The Hydra schema, its composition, and what is checked of values and combinations. Only this package knows Hydra."""
