"""Communication between the ranks of a run that does not depend on the framework."""
