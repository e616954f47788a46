"""Interactive charts of the report: Vega-Lite specs, built with Altair and drawn by a script in the page."""
