"""Open a bundle and answer with onnxruntime. Imports no PyTorch, and works on Windows and macOS too."""
