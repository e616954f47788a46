"""Analyses a study's folder: read -> measures -> tables, figures, report. Files in, files out."""

import csv
import sys

# speedup.csv names all runs of a point in one cell; by default the csv module reads 131,072 characters of it.
csv.field_size_limit(sys.maxsize)
