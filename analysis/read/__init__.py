"""Files of a run directory into rows; damage is counted, never raised."""
