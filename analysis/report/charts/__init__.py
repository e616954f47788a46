"""The interactive drawings of the report's page: Vega-Lite, built with Altair, drawn by a script in the page."""
