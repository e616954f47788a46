"""What is computed from runs and points: speedup, breakdown, cost and the rest."""
