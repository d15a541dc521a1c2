"""One file for each feature kind, what all of them share, and their registry."""
