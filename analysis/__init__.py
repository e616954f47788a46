"""From a study's folder to figures: read -> metrics -> tables, figures, report. Files in, files out."""
