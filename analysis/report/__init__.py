"""Tables, sentences, figures and files of a report."""
