"""Passes over ONNX graphs that make them smaller or faster without changing answers."""
