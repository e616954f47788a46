"""Networks: `catalog.py` is the framework-neutral table; one builder per framework turns a row into a network."""
