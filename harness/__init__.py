"""The harness: plan a scaling study, launch it, run it on the nodes. Imports no deep-learning framework."""
