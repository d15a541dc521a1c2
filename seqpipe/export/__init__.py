"""Export a trained pipeline as a verified bundle.

The tracer uses private parts of PyTorch, all of which are in `seqpipe.nn.torch_internals`.
"""
