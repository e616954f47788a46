"""Output for papers and proposals: figures, LaTeX tables, report.pdf, scaling section (docs/exports.md)."""
