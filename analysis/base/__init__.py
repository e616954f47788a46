"""Numbers, text, files and errors that all packages of the analysis share."""
