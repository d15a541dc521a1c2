"""Trace a trained pipeline into one ONNX graph, compare the graph with PyTorch, and write the bundle."""
