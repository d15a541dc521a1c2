"""Building blocks of embeddings, encoders and heads, by subject: they are trained in PyTorch and export to ONNX.

Each module lists in `__all__` the names for authors of components; `seqpipe.plugin` has those that need no PyTorch.

- `layers`: ids of special tokens, scores of impossible items, dropout, positions and feed-forward networks.
- `loops`: loops and conditions that become ONNX Loop, Scan and If.
- `cells`, `recurrent`: recurrent cells, and layers of them over rows of different lengths.
- `attention`, `multi_source_attention`: attention, attention pooling, and attention to several sources.
- `search`: greedy search, beam search and sampling.
- `seq2seq_head`: the base class of heads that generate text.
- `incremental`: caches for one token at a time, of language models.
- `crf`, `calibration`: conditional random fields; temperatures and thresholds fitted on dev data.
- `corruption`: masked tokens, removed spans and other corruption of inputs.
- `pretrained`, `pretrained_seq2seq`: checkpoints of `transformers`.
"""

__all__ = ["attention", "calibration", "cells", "corruption", "crf", "incremental", "layers", "loops"]
__all__ += ["multi_source_attention", "pretrained", "pretrained_seq2seq", "recurrent", "search", "seq2seq_head"]
