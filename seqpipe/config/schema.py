"""Keys of a YAML outside of components: types, bounds, defaults and meaning, as pydantic models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from seqpipe.features.document import Overlaps
from seqpipe.features.spans import Offsets
from seqpipe.types import Fraction, Means

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PathText = Annotated[str, Field(min_length=1), Means("a path")]
Share = Annotated[float, Field(gt=0, le=0.5), Means("a share of the records, of at most 0.5")]
Files = Annotated[PathText | Annotated[tuple[PathText, ...], Field(min_length=1)], Means("a path or a list of paths")]
Sets = Annotated[dict[Name, Files], Means("a mapping from names to paths")]

TOP: Mapping[str, str] = {
    "name": "Name of the run and the bundle; default: the name of the file without its extension.",
    "data": "The reader and the data files.",
    "needs": "Folders that the pipeline depends on; `run` and `train` create missing ones.",
    "inputs": "Several sources by name, each with its own field, tokenizer, embedding and encoder.",
    "tokenizer": "Splits text into tokens.",
    "embedding": "Maps tokens to vectors; a list is concatenated.",
    "encoder": "Maps vectors to contextual vectors; a list is applied in order.",
    "head": "Training loss and prediction; a list is a multi-task model.",
    "train": "Training options.",
    "export": "Export options.",
    "card": "The model card: what its author states, and the scores by group.",
    "plugins": "Allowed plugins, and the versions used in a run.",
}
STAGES = ("embedding", "encoder", "head")
OF_A_SOURCE: Mapping[str, str] = {
    "field": "The input field of the record, or a list of two; without a tokenizer, a field of numbers.",
    **{key: TOP[key] for key in ("tokenizer", "embedding", "encoder")},
}


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Adam(_Keys):
    use: str
    lr: PositiveFloat = Field(default=0.002, description="Learning rate.")
    weight_decay: float = 0.0
    betas: tuple[Fraction, Fraction] = Field(
        default=(0.9, 0.999), description="Decay rates of the two moment estimates."
    )
    eps: PositiveFloat = Field(default=1e-8, description="Added to the denominator for numerical stability.")


class AdamW(_Adam):
    """Adam with decoupled weight decay."""

    use: Literal["adamw"] = "adamw"
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled weight decay.")


class Adam(_Adam):
    """Adam."""

    use: Literal["adam"] = "adam"
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty.")


class SGD(_Keys):
    """Stochastic gradient descent."""

    use: Literal["sgd"] = "sgd"
    lr: PositiveFloat = Field(default=0.1, description="Learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty.")
    momentum: Fraction = Field(default=0.0, description="Momentum.")
    nesterov: bool = Field(default=False, description="Nesterov momentum.")

    @model_validator(mode="after")
    def _momentum_for_nesterov(self) -> SGD:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0; set momentum: 0.9")
        return self


class _Schedule(_Keys):
    use: str
    warmup_ratio: Fraction = Field(default=0.0, description="Fraction of training with linear warm-up from 0.")


class Constant(_Schedule):
    """Constant learning rate."""

    use: Literal["constant"] = "constant"


class Linear(_Schedule):
    """Linear decay."""

    use: Literal["linear"] = "linear"
    final_ratio: float = Field(default=0.0, ge=0, le=1, description="Final share of the initial learning rate.")


class Cosine(_Schedule):
    """Cosine decay."""

    use: Literal["cosine"] = "cosine"
    final_ratio: float = Field(default=0.0, ge=0, le=1, description="Final share of the initial learning rate.")


class Plateau(_Schedule):
    """Decay by a factor if the dev score has not improved for some epochs."""

    use: Literal["plateau"] = "plateau"
    factor: float = Field(default=0.5, gt=0, lt=1, description="Factor of the learning rate.")
    patience: int = Field(
        default=2, gt=0, description="Epochs without progress before decay, counted as train.patience."
    )


class Teacher(_Keys):
    """A trained model whose answers are learned (knowledge distillation)."""

    path: PathText = Field(description="The run or bundle of the teacher.")
    weight: float = Field(default=0.5, gt=0, le=1, description="Share of the teacher's loss, beside that of labels.")
    temperature: PositiveFloat = Field(default=2.0, description="Divisor of the logits of teacher and student.")
    beams: PositiveInt = Field(default=5, description="Beams of a teacher that generates text.")


class SelfTraining(_Keys):
    """Rounds of training in which answers to the texts of `data.unlabelled` become training data."""

    rounds: PositiveInt = Field(
        default=1, description="Maximum number of rounds; a round without a better dev score is the last."
    )
    thresholds: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(0.5, 0.7, 0.9),
        min_length=1,
        description="Minimum confidence of an answer that becomes training data, the probability of its least certain "
        "label; each round trains once for each, and the best on dev is kept.",
    )


def _allow_path(schema: dict[str, Any]) -> None:
    schema["anyOf"].insert(0, {"type": "string", "minLength": 1})


class Train(_Keys):
    """Training settings of the pipeline."""

    epochs: PositiveInt = Field(default=30, description="Number of passes over the training data.")
    batch_tokens: PositiveInt = Field(
        default=1024,
        description="Maximum number of tokens of a batch, with padding. If a "
        "stage is quadratic in the length, those of a text of n > 512 tokens count n / 512 times.",
    )
    max_tokens: PositiveInt | None = Field(
        default=None, description="Maximum number of tokens of a training text; null: limited by memory only."
    )
    too_long: Literal["error", "truncate", "split"] = Field(
        default="error",
        description="What happens to a training text of more than max_tokens: an error, its first tokens only, or "
        "several texts, for tags, spans and masked language models.",
    )
    batch_size: PositiveInt | None = Field(
        default=None, description="Maximum number of records of a batch; null: limited by batch_tokens only."
    )
    epoch_steps: PositiveInt | None = Field(
        default=None, description="Steps of an epoch, of random batches or windows; null: one pass over all texts."
    )
    optimizer: Annotated[AdamW | Adam | SGD, Field(discriminator="use", description="Optimizer.")] = AdamW()
    schedule: Annotated[
        Constant | Linear | Cosine | Plateau, Field(discriminator="use", description="Learning rate schedule.")
    ] = Constant()
    clip: PositiveFloat | None = Field(
        default=5.0, description="Maximum norm of the gradient (gradient clipping); null: no clipping."
    )
    accumulate: PositiveInt = Field(default=1, description="Batches per step, as one batch (gradient accumulation).")
    patience: PositiveInt | None = Field(
        default=None,
        description="Early stopping: number of epochs without a better dev score, counted once the score has moved "
        "from its first value; null: off.",
    )
    metric: str | None = Field(
        default=None,
        description="The dev score that selects the best epoch, such as bleu, slots.f1 or loss; null: the first one. "
        "Of epochs with equal scores, that with the lowest dev loss is selected. "
        "With a leading minus lower is better, as for loss, error rates, mae, rmse and perplexity by default.",
    )
    average: Fraction | None = Field(
        default=None, description="Decay of the exponential moving average of weights that is exported; null: off."
    )
    teacher: Annotated[Teacher | None, Means("a path, a mapping of keys, or null")] = Field(
        default=None,
        json_schema_extra=_allow_path,
        description="A trained model; its answers to the training texts and those of data.unlabelled are learned.",
    )
    checkpoint_steps: PositiveInt = Field(default=500, description="Number of steps between checkpoints.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Precision of training; weights, dev scores and the bundle are fp32."
    )
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        default="highest",
        description="Internal precision of fp32 matrix products in training, as of torch.set_float32_matmul_precision: "
        "highest is fp32, high TF32, medium bf16, where the device has it.",
    )
    seed: int = Field(default=1, ge=0, description="Random seed.")
    self_training: Annotated[SelfTraining, Means("a mapping of keys")] | None = Field(
        default=None, description="Self-training on the texts of `data.unlabelled`, for labels and tags; null: off."
    )
    threads: PositiveInt | None = Field(
        default=None,
        description="Number of CPU threads; null: one, and another for each 500,000 weights outside embedding tables, "
        "at most one for each core.",
    )

    @model_validator(mode="after")
    def _limit_of_too_long(self) -> Train:
        if self.too_long != "error" and self.max_tokens is None:
            raise ValueError(f"too_long: {self.too_long} needs a limit; set train.max_tokens")
        return self


MOST_TOKENS = 100_000  # of one text, in training and in any bundle


class Export(_Keys):
    """Export options."""

    precision: Literal["fp32", "int8"] = Field(
        default="fp32", description="Precision of weights; int8 quantizes those of matrix products and embeddings."
    )
    opset: int = Field(default=18, ge=18, le=23, description="Version of the ONNX operators.")
    explain: bool = Field(
        default=False, description="Whether the graph also returns attention weights, for `seqpipe explain`."
    )
    streaming: bool = Field(
        default=False, description="Whether the bundle also answers texts in chunks, for `seqpipe predict --stream`."
    )
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="Maximum tokens read or generated; null: 4 times the longest in training, at least 1,000 or 200.",
    )
    max_beams: int = Field(
        default=100, ge=1, le=MOST_TOKENS, description="Maximum of the decode options beams and n_best."
    )
    license: str | None = Field(
        default=None, pattern=r"^[a-z0-9][a-z0-9.-]*$", description="Of the model card, as on the hub: apache-2.0."
    )
    language: str | None = Field(default=None, pattern=r"^[a-z]+(-[A-Za-z]+)*$", description="Of the model card: en.")


class Card(_Keys):
    """The model card: what its author states, and the scores by group."""

    intended_use: str | None = Field(default=None, min_length=1, description="Intended use, and uses not intended.")
    limits: str | None = Field(default=None, min_length=1, description="Source and language of the data, and its gaps.")
    by: str | None = Field(
        default=None, min_length=1, description="Field of the records by whose values the card has the test scores."
    )


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{text!r} is not a distribution with versions, such as 'acme-conv>=1,<2': {reason}") from None
    return text


Allowed = Annotated[str, AfterValidator(_requirement), Means("a distribution with versions, such as 'acme-conv>=1,<2'")]


class PluginKeys(_Keys):
    """Allowed plugins, and the versions used in a run."""

    allow: tuple[Allowed, ...] | None = Field(
        default=None,
        description="Distributions with version ranges whose plugins are loaded; null: all. Built-ins always are.",
    )
    versions: dict[str, str] = Field(
        default={}, description="Distribution and version of each component of a run; a change is a warning."
    )


class SplitKeys(_Keys):
    """Field of records that says which of them are dev or test data; records of other values are training data."""

    field: str = Field(min_length=1, description="Name of the field.")
    dev: str | None = Field(default=None, description="Its value in dev records; null: there are none.")
    test: str | None = Field(default=None, description="Its value in test records; null: there are none.")


class DataKeys(_Keys):
    """The keys of `data` beside `reader`.

    Paths are relative to the YAML: of a file, a pattern such as `data/*.jsonl`, or a folder of data files.
    """

    train: Files = Field(description="Training data.")
    dev: Files | Share | None = Field(
        default=None, description="Dev data, which selects the best epoch: a file, or a share of the training data."
    )
    test: Files | Share | Sets | None = Field(
        default=None, description="Test data: a file, several by name, or a share of the training data."
    )
    add: tuple[PathText, ...] | None = Field(
        default=None, description="Files whose records follow those of `train`; `run --data-add` sets it."
    )
    group: str | None = Field(
        default=None,
        min_length=1,
        description="Field of the records, such as a document or a speaker: shares and folds never divide a group. "
        "null: records with the same text are a group.",
    )
    split: SplitKeys | None = Field(
        default=None,
        description="Field of the records that says which of them are dev or test data, and its value for each.",
    )
    split_seed: int = Field(default=1, description="Decides which records the shares of dev and test, and folds, take.")
    fold: tuple[PositiveInt, PositiveInt] | None = Field(
        default=None,
        description="Cross-validation: the number of the fold that is the test set, and the count of folds; "
        "`run --folds` sets it.",
    )
    unlabelled: Files | None = Field(
        default=None,
        description="Texts without labels, for train.teacher or train.self_training; labels in the file are ignored.",
    )
    candidates: Files | None = Field(
        default=None, description="The candidate answers of retrieval; null: those of the training data."
    )
    bad_rows: Literal["error", "skip"] = Field(
        default="error", description="Treatment of unreadable records: stop, or leave them out with a warning."
    )
    misaligned: Literal["error", "widen", "skip"] = Field(
        default="error", description="Treatment of spans that cut a token."
    )
    overlaps: Overlaps = Field(
        default="error", description="Overlapping spans: stop, or keep the `longest`, or the `first` by start."
    )
    offsets: Offsets = Field(
        default="characters",
        description="Unit of the offsets of spans, for readers with the option `offsets`: characters, UTF-16 units, "
        "bytes, characters with inclusive ends, or characters from 1.",
    )
    unseen_labels: Literal["error", "miss"] = Field(
        default="error", description="Dev and test labels that training lacks: stop, or count them as missed."
    )


class NeedKeys(_Keys):
    """A folder that the pipeline depends on, and its origin; paths are relative to the YAML."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["run"]}, {"required": ["make"]}]})

    path: PathText = Field(description="The folder, as in another key of the YAML.")
    run: PathText | None = Field(
        default=None, description="The YAML whose run creates the folder; it is run first if it is not trained."
    )
    make: Literal["tiny-bert"] | None = Field(
        default=None,
        description="The small model in the folder; `tiny-bert` is a BERT with random weights and a "
        "subword vocabulary learned from the training texts.",
    )
    pieces: PositiveInt = Field(default=1000, description="Maximum size of the subword vocabulary of `tiny-bert`.")

    @model_validator(mode="after")
    def _one_origin(self) -> NeedKeys:
        if (self.run is None) == (self.make is None):
            raise ValueError("an entry of 'needs' has a path and either run: FILE.yaml or make: tiny-bert")
        return self


SECTIONS: Mapping[str, type[BaseModel]] = {"data": DataKeys, "train": Train, "export": Export, "card": Card}
CHOICES: Mapping[str, Mapping[str, type[BaseModel]]] = {
    "optimizer": {"adamw": AdamW, "adam": Adam, "sgd": SGD},
    "schedule": {"constant": Constant, "linear": Linear, "cosine": Cosine, "plateau": Plateau},
}
