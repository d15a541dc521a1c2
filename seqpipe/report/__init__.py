"""Reports and comparisons of runs."""
