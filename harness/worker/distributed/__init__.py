"""How the ranks of a run reach each other, whatever the framework."""
