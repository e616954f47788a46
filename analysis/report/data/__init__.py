"""A study's findings for other programs: tables, one JSON document, and the formats of other trackers."""
