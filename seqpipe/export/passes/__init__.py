"""Passes over ONNX graphs that make them smaller or faster and change no answer."""
