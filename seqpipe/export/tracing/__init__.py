"""Trace a module and translate the trace to ONNX."""
