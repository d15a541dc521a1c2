"""Open a bundle and answer with onnxruntime. Imports neither PyTorch nor anything that Windows or macOS lack."""
