"""The component contract: every member that seqpipe looks for on a component.

A component is any class of the right shape; it need not inherit from anything. `MEMBERS` lists what seqpipe reads, with
the default that holds where a class leaves a member out. The tables of docs/reference/contract.md are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STAGE = ("embedding", "encoder", "head")
REQUIRED = object()  # default of a member that every class must have
ABSENT = None  # default of an optional member


@dataclass(frozen=True)
class Member:
    """One member of a component class or of what is built from it.

    Args:
        places: The kinds of component that may have it.
        form: An attribute of the class or of the instance, a method, or a static method.
        type: Its type, or a method's signature.
        meaning: Its meaning in one sentence.
        default: Its value if a class leaves it out.
        by_options: Whether a static method of the options may replace it.
    """

    places: tuple[str, ...]
    form: str
    type: str
    meaning: str
    default: Any = ABSENT
    by_options: bool = False


MEMBERS: Mapping[str, Member] = {
    # readers
    "read": Member(("reader",), "method", "(path) -> iterator of records", "Read a file record by record.", REQUIRED),
    "fields": Member(("reader",), "class attribute", "tuple of str", "The fields that its records may have."),
    "records": Member(
        ("reader",), "method", "(lines, name) -> iterator of records", "Read lines of text, such as standard input."
    ),
    "files": Member(("reader",), "method", "(path) -> list of paths", "Every file that belongs to a path."),
    "folder": Member(("reader",), "class attribute", "bool", "Whether it reads a folder instead of a file.", False),
    "left_out": Member(
        ("reader",), "attribute", "list of str or None", "Takes the errors of records that it leaves out.", ABSENT
    ),
    "changes": Member(("reader",), "method", "(path) -> bool", "Whether the records differ between epochs.", ABSENT),
    "epoch": Member(("reader",), "method", "(path, number) -> iterator of records", "The records of one epoch."),
    # tokenizers
    "train": Member(
        ("tokenizer",), "method", "(texts) -> tokenizers.Tokenizer", "Fit a tokenizer to the training texts.", REQUIRED
    ),
    "dev_messages": Member(
        ("tokenizer",),
        "method",
        "(tokenizer, texts) -> list of str",
        "Messages about the fitted tokenizer on the dev texts, printed before training.",
    ),
    # every stage
    "features": Member(
        STAGE,
        "class attribute",
        "dict from names to features",
        "Features that it needs besides ids and mask.",
        {},
        True,
    ),
    "returns": Member(
        ("embedding", "encoder"),
        "class attribute",
        "tuple of names, or dict from names to a shape and a dtype",
        "The names that `forward` returns.",
        ("x",),
    ),
    "explains": Member(
        ("embedding", "encoder", "head"),
        "class attribute",
        "dict from names to words, sentences, pairs, written or steps",
        "The returned arrays that are attention weights, and what they are over.",
        {},
        True,
    ),
    "dim": Member(("embedding", "encoder"), "attribute", "int", "Width of the x that it returns.", REQUIRED),
    "forward": Member(
        ("embedding", "encoder"),
        "method",
        "(names…) -> x or a dict",
        "Compute x from the names it asks for.",
        REQUIRED,
    ),
    "rows": Member(
        STAGE, "attribute", "dict from parameters to axes", "Axes of parameters that belong to entries of names.", {}
    ),
    "join_state": Member(STAGE, "method", "(state) -> state", "Join the parts of a state for `init`.", dict),
    "split_state": Member(STAGE, "method", "(state) -> state", "The inverse of `join_state`.", dict),
    "joined_from": Member(
        STAGE, "class attribute", "dict from parts to kind and use", "The stages of a run that `init` joins.", ABSENT
    ),
    "learning_rate_factor": Member(
        STAGE, "method", "(parameter name) -> float", "Factor of the learning rate of a parameter.", lambda name: 1.0
    ),
    "messages": Member(STAGE, "method", "() -> list of str", "Messages printed before training.", ABSENT),
    "example_length": Member(STAGE, "attribute", "int or None", "A length of text that export also compares.", ABSENT),
    "first_tokens": Member(
        ("encoder",), "attribute", "int", "Maximum number of tokens of the first text of a pair.", ABSENT
    ),
    "max_tokens": Member(
        ("encoder",), "attribute", "int or None", "Maximum number of tokens of a text; a longer one is refused.", ABSENT
    ),
    "cuts_texts": Member(
        ("encoder",),
        "attribute",
        "bool",
        "Whether only the first `max_tokens` tokens of a longer text are read.",
        False,
    ),
    # embeddings and encoders of a language model, or of a pipeline that answers in chunks
    "tokenwise": Member(
        ("embedding", "encoder"),
        "class attribute",
        "bool",
        "Whether a token's vector depends on that token only; of an encoder, a word's on that word.",
        False,
    ),
    "embed": Member(
        ("encoder",), "method", "(ids) -> dict", "Of an encoder without an embedding: the vectors of tokens.", ABSENT
    ),
    "causal_fix": Member(
        ("encoder",),
        "static method",
        "(options) -> str",
        "Of a causal encoder: the setting that would make it causal, or an empty string if it is.",
        ABSENT,
    ),
    "cache_shape": Member(("encoder",), "attribute", "(int, int)", "Shape of a slot of its cache."),
    "cache_per_token": Member(
        ("encoder",), "class attribute", "bool", "Whether its cache has a slot for each token, or one for all.", False
    ),
    "import_cache": Member(("encoder",), "method", "(cache) -> memory", "Import the cache from an input of the graph."),
    "export_cache": Member(
        ("encoder",), "method", "(prefix, state, slots) -> Tensor", "Export the cache as an output of the graph."
    ),
    "prefill": Member(
        ("encoder",), "method", "(x, mask, prefix) -> x and memory", "Read several tokens of a prompt at once."
    ),
    "init_cache": Member(
        ("encoder",), "method", "(prefix, max_length) -> state", "Create the state of a decoding loop."
    ),
    "step": Member(("encoder",), "method", "(x, t, prefix, state) -> x and state", "Decode one token."),
    "max_length": Member(("encoder",), "attribute", "int or None", "Maximum number of tokens of a text.", ABSENT),
    "state_source": Member(
        ("encoder",),
        "static method",
        "(options) -> str",
        "Name of the source whose final state is its initial state, or an empty string.",
        "",
        True,
    ),
    "set_stateful": Member(
        ("encoder",), "method", "(rows or None)", "Start or stop carrying states across batches.", ABSENT
    ),
    "carried_state": Member(("encoder",), "attribute", "Tensor or None", "The carried states.", ABSENT),
    # heads
    "answer": Member(("head",), "class attribute", "str", "The name of its answer kind.", ABSENT, True),
    "answer_settings": Member(("head",), "class attribute", "dict", "Settings of the answer kind.", {}, True),
    "score_types": Member(
        ("head",), "class attribute", "dict from names to seqpipe.plugin.Metric", "Meaning of its own scores.", {}
    ),
    "loss": Member(("head",), "method", "(names…) -> Tensor", "The training loss, one number.", REQUIRED),
    "decide": Member(
        ("head",), "method", "(names…, *, options) -> dict", "The decision, inside the exported graph.", REQUIRED
    ),
    "streaming_problem": Member(
        ("head",),
        "static method",
        "(options) -> str",
        "Of a head that answers in chunks: what prevents that under these options, and the fix, or an empty string.",
        ABSENT,
    ),
    "state_shape": Member(
        ("head",), "attribute", "(int, int)", "Shape of the state that it carries from chunk to chunk.", ABSENT
    ),
    "decide_chunk": Member(
        ("head",),
        "method",
        "(x, mask, state, *, options) -> dict",
        "The decision about the next tokens of each text, and the next `state`.",
        ABSENT,
    ),
    "score": Member(("head",), "method", "(names…) -> (B,)", "Log-probability of a decision.", ABSENT),
    "margin": Member(("head",), "method", "(names…) -> (B,)", "Margin between two decisions.", ABSENT),
    "explain": Member(("head",), "method", "(names…) -> dict", "Attention weights of a decision.", ABSENT),
    "metrics": Member(("head",), "static method", "(options, gold, predicted) -> dict", "Metrics of its own.", ABSENT),
    "needs_dev": Member(
        ("head",), "static method", "(options) -> str", "The option by which it chooses a value on dev.", ABSENT
    ),
    "evidence": Member(("head",), "method", "(names…) -> dict", "Rows of a dev batch for `calibrate`.", ABSENT),
    "calibrate": Member(("head",), "method", "(evidence)", "Choose values on dev, and keep them in buffers.", ABSENT),
    "set_candidates": Member(
        ("head",), "method", "(vectors)", "Take the vectors (N, D) of the candidates into its buffer `vectors`.", ABSENT
    ),
    "calibration": Member(("head",), "method", "() -> JSON", "The chosen values.", ABSENT),
    "inactive_options": Member(
        ("head",),
        "static method",
        "(options) -> list of str",
        "Decode options without effect under these options.",
        ABSENT,
    ),
    "corpus": Member(
        ("head",),
        "static method",
        "(options) -> dict",
        "Of a language model: packed, context and stateful, the settings of its training texts.",
        ABSENT,
        True,
    ),
    "self_supervised": Member(("head",), "class attribute", "bool", "Whether it is self-supervised.", False, True),
    "corrupted_inputs": Member(
        ("head",), "class attribute", "tuple of names", "The names that `corrupt_batch` replaces or adds.", (), True
    ),
    "corrupt_batch": Member(("head",), "method", "(names…) -> dict", "Corrupt the inputs of a batch.", ABSENT),
    "measures": Member(("head",), "method", "(names…) -> dict", "Sums and counts of its own dev scores.", ABSENT),
    "special_tokens": Member(
        ("head",), "class attribute", "tuple of str", "Additional special tokens of the vocabulary.", (), True
    ),
    "adds_bos": Member(("head",), "attribute", "bool", "Of a language model: whether [BOS] begins a text.", ABSENT),
}


# Names that pass between stages, with the shapes and dtypes of those that seqpipe itself provides.

SOURCE_STATE = "source_state"  # final state of another source, the initial state of an encoder
ROWLESS = ("table", "table_bias")  # names without a row for each text
SHAPES: Mapping[str, tuple[str, str]] = {
    "ids": ("(B, T)", "int64"),
    "mask": ("(B, T)", "bool"),
    "x": ("(B, T, D)", "float32"),
    SOURCE_STATE: ("(B, D)", "float32"),
    "incremental": ("the stages", "by token"),
    "dim": ("", "int"),
    "vocabulary": ("V", "text"),
    "target_vocabulary": ("V", "text"),
    "labels": ("L", "text"),
    "sizes": ("", "name: int"),
    "sources": ("a list", "of names"),
    "sources()": ("a list", "int"),
}
