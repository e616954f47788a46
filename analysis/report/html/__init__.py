"""report.html: one file that needs nothing from outside itself and shows every run of the study.

render: the page from the findings, through Jinja's autoescape; runs: what each run says; glance: the key figures;
folding: how 10,000 runs fit. templates/ has the words, style.css the looks, page.js what the page does in a browser.
"""
