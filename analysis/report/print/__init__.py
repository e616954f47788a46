"""For a paper or a proposal: figures, LaTeX tables, report.pdf, the scaling section (docs/exports.md)."""
