"""Training runs: their folder and its lock, their data, training, scores, and the whole way from a YAML to a bundle."""
