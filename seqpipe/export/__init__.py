"""Export a trained pipeline as a verified bundle.

The tracer builds on private parts of PyTorch, all of which stand in `seqpipe.nn.torch_internals`.
"""
