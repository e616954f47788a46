"""Values and file formats that every environment reads: standard library only, Python 3.8 syntax."""
