"""From a checked configuration to requests, grouped by resource shape, with the memory and cost they need."""
