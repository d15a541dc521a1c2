"""Names for authors of components: the hook marker, types of options, features, errors, and the test kit.

The building blocks of embeddings, encoders and heads, which need PyTorch, are in `seqpipe.nn`, by subject.

```python
from seqpipe.nn.recurrent import ragged_rnn
from seqpipe.plugin import DataError, Size, check_head, hookimpl
```
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from seqpipe import nn
from seqpipe.config.hookspecs import hookimpl
from seqpipe.errors import DataError, EnvError, UsageError, did_you_mean, install_command
from seqpipe.features.spans import Offsets, StatedSpan, fitting_offsets, stated_span
from seqpipe.version import PLUGIN_API

if TYPE_CHECKING:
    from seqpipe.answers import tagging_schemes
    from seqpipe.answers.metrics.squad import gold_answers, locate_answer
    from seqpipe.answers.metrics.text import BleuTokenizer
    from seqpipe.answers.types import Metric
    from seqpipe.features.checkpoint_tokenizer import NO_CHECKPOINT_ID, pretrained_tokenizer
    from seqpipe.features.kinds.image import Image
    from seqpipe.features.kinds.matrix import Matrix
    from seqpipe.features.kinds.mel import Mel
    from seqpipe.features.kinds.ngrams import Ngrams, read_names
    from seqpipe.features.kinds.text import Chars, Column, Copy, Pieces, Segments, Sentences
    from seqpipe.features.media import with_paths
    from seqpipe.features.vocabulary import (
        MASK,
        SPAN_MARKS,
        SPECIALS,
        UNK,
        FeatureSize,
        replace_surrogates,
        token_counts,
        word_level,
    )
    from seqpipe.files import JSON_DECODER, LONGEST_LINE, file_lines, open_file
    from seqpipe.runtime.opened import open_bundle
    from seqpipe.testing import check_embedding, check_encoder, check_head, check_reader, check_tokenizer
    from seqpipe.types import Automaton, Checkpoint, Folder, Probability, Size, Texts, Tokens, Trie, TryWith, Uniform

__all__ = ["PLUGIN_API", "hookimpl"]
__all__ += ["Automaton", "Checkpoint", "Folder", "Probability", "Size", "Texts", "Tokens", "Trie", "TryWith", "Uniform"]
__all__ += ["DataError", "EnvError", "UsageError", "did_you_mean", "install_command"]
__all__ += ["Chars", "Column", "Copy", "Image", "Matrix", "Mel", "Ngrams", "Pieces", "Segments", "Sentences"]
__all__ += ["MASK", "SPAN_MARKS", "SPECIALS", "UNK", "FeatureSize", "replace_surrogates", "token_counts", "word_level"]
__all__ += ["NO_CHECKPOINT_ID", "pretrained_tokenizer", "read_names", "with_paths"]
__all__ += ["Offsets", "StatedSpan", "fitting_offsets", "stated_span"]
__all__ += ["BleuTokenizer", "Metric", "gold_answers", "locate_answer", "tagging_schemes"]
__all__ += ["JSON_DECODER", "LONGEST_LINE", "file_lines", "open_bundle", "open_file"]
__all__ += ["check_embedding", "check_encoder", "check_head", "check_reader", "check_tokenizer"]

# Modules that are searched at the first use of a name, the lightest first: plugins are listed without NumPy and
# pydantic, and readers run without PyTorch.
_LATER = "types files features.vocabulary features.kinds.text features.kinds.ngrams features.kinds.matrix "
_LATER += "features.kinds.image features.kinds.mel features.media features.checkpoint_tokenizer answers answers.types "
_LATER += "answers.metrics.squad answers.metrics.text runtime.opened testing"

if not TYPE_CHECKING:  # of a module with this function, type checkers accept any name

    def __getattr__(name: str) -> Any:
        if name in __all__:
            modules = (vars(__import__(f"seqpipe.{path}", fromlist=[name])) for path in _LATER.split())
            return next(names[name] for names in modules if name in names)
        if not name.startswith("_") and find_spec("torch"):
            for subject in nn.__all__:
                place = f"seqpipe.nn.{subject}"
                if name == subject or name in import_module(place).__all__:
                    place = "seqpipe.nn" if name == subject else place
                    # Of an AttributeError, `from seqpipe.plugin import …` would not show the message.
                    raise ImportError(f"{name} is a building block of {place}: from {place} import {name}")
        raise AttributeError(f"module 'seqpipe.plugin' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
