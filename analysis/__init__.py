"""Analyses a study's folder: read -> measures -> tables, figures, report. Files in, files out."""
