"""The component contract: every member that seqpipe looks for on a component.

A component is any class of the right shape; it need not inherit from anything. `MEMBERS` lists what seqpipe reads, with
the default that holds where a class leaves a member out. The tables of docs/reference/contract.md are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REQUIRED = object()  # default of a member that every class must have
ABSENT = None  # default of an optional member


@dataclass(frozen=True)
class Member:
    """One member of a component class or of what is built from it."""

    places: tuple[str, ...]  # the kinds of component that may have it
    form: str  # an attribute of the class or of the instance, a method, or a static method
    type: str  # its type, or a method's signature
    meaning: str  # in one sentence
    default: Any = ABSENT  # its value if a class leaves it out
    by_options: bool = False  # whether a static method of the options may replace it


READER, TOKENIZER, ENCODER, HEAD = ("reader",), ("tokenizer",), ("encoder",), ("head",)
VECTORS = ("embedding", "encoder")
STAGE = (*VECTORS, "head")

MEMBERS: Mapping[str, Member] = {
    # readers
    "read": Member(READER, "method", "(path) -> iterator of records", "Read a file record by record.", REQUIRED),
    "fields": Member(READER, "class attribute", "tuple of str", "The fields that its records may have."),
    "records": Member(
        READER, "method", "(lines, name) -> iterator of records", "Read lines of text, such as standard input."
    ),
    "files": Member(READER, "method", "(path) -> list of paths", "Every file that belongs to a path."),
    "folder": Member(READER, "class attribute", "bool", "Whether it reads a folder instead of a file.", False),
    "left_out": Member(READER, "attribute", "list of str or None", "Takes the errors of records that it leaves out."),
    "changes": Member(READER, "method", "(path) -> bool", "Whether the records differ between epochs."),
    "epoch": Member(READER, "method", "(path, number) -> iterator of records", "The records of one epoch."),
    # tokenizers
    "train": Member(
        TOKENIZER, "method", "(texts) -> tokenizers.Tokenizer", "Fit a tokenizer to the training texts.", REQUIRED
    ),
    "dev_messages": Member(
        TOKENIZER, "method", "(tokenizer, texts) -> list of str", "Messages on the dev texts, printed before training."
    ),
    # every stage
    "features": Member(
        STAGE, "class attribute", "dict from names to features", "Features needed besides ids and mask.", {}, True
    ),
    "returns": Member(
        VECTORS, "class attribute", "names, or dict from names to shape and dtype", "Outputs of `forward`.", ("x",)
    ),
    "explains": Member(
        STAGE,
        "class attribute",
        "dict from names to words, sentences, pairs, written or steps",
        "The returned arrays that are attention weights, and what they are over.",
        {},
        True,
    ),
    "dim": Member(VECTORS, "attribute", "int", "Width of the x that it returns.", REQUIRED),
    "forward": Member(VECTORS, "method", "(names…) -> x or a dict", "Compute x from the names it asks for.", REQUIRED),
    "rows": Member(
        STAGE, "attribute", "dict from parameters to axes", "Axes of parameters that belong to entries of names.", {}
    ),
    "join_state": Member(STAGE, "method", "(state) -> state", "Join the parts of a state for `init`.", dict),
    "split_state": Member(STAGE, "method", "(state) -> state", "The inverse of `join_state`.", dict),
    "load_init": Member(STAGE, "method", "(init) -> str", "Copy the weights that a mapping `init` names."),
    "joined_from": Member(
        STAGE, "class attribute", "dict from parts to kind and use", "The stages of a run that `init` joins."
    ),
    "learning_rate_factor": Member(
        STAGE, "method", "(parameter name) -> float", "Factor of the learning rate of a parameter.", lambda name: 1.0
    ),
    "messages": Member(STAGE, "method", "() -> list of str", "Messages printed before training."),
    "length_cost": Member(
        STAGE,
        "class attribute",
        "linear or quadratic",
        "Growth of time and memory with the length of a text.",
        "linear",
        True,
    ),
    "batch_dependent": Member(
        STAGE,
        "class attribute",
        "bool",
        "Whether training needs the batch as a whole, which several devices and `train.accumulate` divide.",
        False,
        True,
    ),
    "example_length": Member(STAGE, "attribute", "int or None", "A length of text that export also compares."),
    "first_tokens": Member(ENCODER, "attribute", "int", "Maximum number of tokens of the first text of a pair."),
    "max_tokens": Member(
        (*ENCODER, *HEAD), "attribute", "int or None", "Maximum number of tokens of a text; a longer one is refused."
    ),
    "cuts_texts": Member(
        ENCODER, "attribute", "bool", "Whether only the first `max_tokens` tokens of a longer text are read.", False
    ),
    "grid": Member(
        ENCODER,
        "static method",
        "(options, height, width) -> (int, int)",
        "Rows and columns of the places that it makes of a picture.",
    ),
    # embeddings and encoders of a language model, or of a pipeline that answers in chunks
    "tokenwise": Member(
        VECTORS, "class attribute", "bool", "Whether a vector depends only on its own token (encoders: word).", False
    ),
    "context": Member(
        ENCODER, "class attribute", "left, right, both or same", "Where the tokens are that it reads.", "both", True
    ),
    "reads_columns": Member(ENCODER, "class attribute", "bool", "Whether neighbouring columns are compared.", False),
    "embed": Member(ENCODER, "method", "(ids) -> dict", "Of an encoder without an embedding: the vectors of tokens."),
    "causal_fix": Member(
        ENCODER, "static method", "(options) -> str", "The setting that would make it causal, or an empty string."
    ),
    "cache_shape": Member(ENCODER, "attribute", "(int, int)", "Shape of a slot of its cache."),
    "cache_per_token": Member(
        ENCODER, "class attribute", "bool", "Whether its cache has a slot for each token, or one for all.", False
    ),
    "import_cache": Member(ENCODER, "method", "(cache) -> memory", "Import the cache from an input of the graph."),
    "export_cache": Member(
        ENCODER, "method", "(prefix, slots) -> Tensor", "Export the cache as an output of the graph."
    ),
    "prefill": Member(
        ENCODER,
        "method",
        "(x, mask, prefix) -> x and memory",
        "Read several tokens of a prompt at once; of the tokens of an optional parameter `rows`, return x.",
    ),
    "init_cache": Member(ENCODER, "method", "(prefix) -> state", "Create the state of a decoding loop."),
    "extend_memory": Member(ENCODER, "method", "(memory, state) -> memory", "Add the tokens of a state to the memory."),
    "step": Member(ENCODER, "method", "(x, t, prefix, state) -> x and state", "Decode one token."),
    "max_length": Member(ENCODER, "attribute", "int or None", "Maximum number of tokens of a text."),
    "state_source": Member(
        ENCODER, "static method", "(options) -> str", "Source whose final state is its initial one, or empty.", "", True
    ),
    "set_stateful": Member(ENCODER, "method", "(rows or None)", "Start or stop carrying states across batches."),
    "carried_state": Member(ENCODER, "attribute", "Tensor or None", "The carried states."),
    # heads
    "answer": Member(HEAD, "class attribute", "str", "The name of its answer kind.", ABSENT, True),
    "answer_settings": Member(HEAD, "class attribute", "dict", "Settings of the answer kind.", {}, True),
    "score_types": Member(
        HEAD, "class attribute", "dict from names to seqpipe.plugin.Metric", "Meaning of its own scores.", {}
    ),
    "reads_token": Member(HEAD, "class attribute", "first, last or empty", "The only token that it reads.", "", True),
    "loss": Member(HEAD, "method", "(names…) -> Tensor", "The training loss, one number.", REQUIRED),
    "loss_count": Member(
        HEAD,
        "method",
        "(names…) -> Tensor",
        "Number of items of a batch, of which the loss is the mean: by default texts.",
    ),
    "uniform_loss": Member(HEAD, "attribute", "float", "Loss of a uniform guess; training warns above it."),
    "decide": Member(
        HEAD, "method", "(names…, *, options) -> dict", "The decision, inside the exported graph.", REQUIRED
    ),
    "streaming_problem": Member(
        HEAD, "static method", "(options) -> str", "Obstacle to answers in chunks, with a fix, or an empty string."
    ),
    "state_shape": Member(HEAD, "attribute", "(int, int)", "Shape of the state that it carries from chunk to chunk."),
    "decide_chunk": Member(
        HEAD, "method", "(x, mask, state, *, options) -> dict", "Decision about the next tokens, and the next `state`."
    ),
    "distribution": Member(
        HEAD,
        "method",
        "(names…, *, temperature) -> (N, …, L)",
        "Log-probabilities, which a student learns of a teacher.",
    ),
    "score": Member(HEAD, "method", "(names…) -> (B,)", "Log-probability of a decision."),
    "margin": Member(HEAD, "method", "(names…) -> (B,)", "Margin between two decisions."),
    "explain": Member(HEAD, "method", "(names…) -> dict", "Attention weights of a decision."),
    "metrics": Member(HEAD, "static method", "(options, gold, predicted) -> dict", "Metrics of its own."),
    "needs_dev": Member(HEAD, "static method", "(options) -> str", "The option by which it chooses a value on dev."),
    "evidence": Member(HEAD, "method", "(names…) -> dict", "Rows of a dev batch for `calibrate`."),
    "calibrate": Member(HEAD, "method", "(evidence)", "Choose values on dev, and keep them in buffers."),
    "label_pairs": Member(
        HEAD,
        "class attribute",
        "bool",
        "Whether a batch has, for each text, another one with its label, drawn anew in each epoch.",
        False,
        True,
    ),
    "set_candidates": Member(
        HEAD, "method", "(vectors)", "Take the vectors (N, D) of the candidates into its buffer `vectors`."
    ),
    "calibration": Member(HEAD, "method", "() -> JSON", "The chosen values."),
    "inactive_options": Member(
        HEAD, "static method", "(options) -> list of str", "Decode options without effect under these options."
    ),
    "corpus": Member(
        HEAD, "static method", "(options) -> dict", "Settings of its texts: packed, context and stateful.", ABSENT, True
    ),
    "self_supervised": Member(HEAD, "class attribute", "bool", "Whether it is self-supervised.", False, True),
    "corrupted_inputs": Member(
        HEAD, "class attribute", "tuple of names", "The names that `corrupt_batch` replaces or adds.", (), True
    ),
    "corrupt_batch": Member(HEAD, "method", "(names…) -> dict", "Corrupt the inputs of a batch."),
    "measures": Member(HEAD, "method", "(names…) -> dict", "Sums and counts of its own dev scores."),
    "special_tokens": Member(
        HEAD, "class attribute", "tuple of str", "Additional special tokens of the vocabulary.", (), True
    ),
    "adds_bos": Member(HEAD, "attribute", "bool", "Of a language model: whether [BOS] begins a text."),
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
