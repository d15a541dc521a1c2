"""Open a bundle and answer with onnxruntime. Never imports PyTorch, and nothing that Windows or macOS lack."""
