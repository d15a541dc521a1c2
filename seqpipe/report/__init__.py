"""The report of a run: analysis of answers and training, plots, and the page."""
