"""Turn decisions of a graph into answers, with their targets, metrics and errors. Never imports PyTorch."""
