"""report.html: one self-contained file that shows every run of the study.

render: the page from the findings, through Jinja's autoescape; runs: details of each run; glance: key figures; folding:
how 10,000 runs fit. templates/ has the text, style.css the style, script/ the behaviour.
"""
