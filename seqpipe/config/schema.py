"""The keys of a YAML that are no component's: their types, bounds, defaults and meaning, as pydantic models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from seqpipe.types import Fraction, Means

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PathText = Annotated[str, Field(min_length=1), Means("a path")]
Paths = Annotated[dict[Name, PathText], Means("a mapping from names to paths")]

TOP: Mapping[str, str] = {
    "name": "What the run and the bundle are called; by default the file's name without its ending.",
    "data": "Where the records come from.",
    "inputs": "Several sources by name, each with keys of its own: field, tokenizer, embedding, encoder.",
    "tokenizer": "How text becomes tokens.",
    "embedding": "How tokens become vectors; the vectors of a list are concatenated.",
    "encoder": "What is made of the vectors; a list is applied in order.",
    "head": "What is learned and decided.",
    "train": "How it is trained.",
    "export": "What the shipped graph is like.",
    "plugins": "Which installed plugins may be used, and which versions were.",
}
STAGES = ("embedding", "encoder", "head")
OF_A_SOURCE: Mapping[str, str] = {
    "field": "The record field that is the input, a list of two, or without a tokenizer one that holds numbers.",
    **{key: TOP[key] for key in ("tokenizer", "embedding", "encoder")},
}


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class AdamW(_Keys):
    """Adam with decoupled weight decay."""

    use: Literal["adamw"] = "adamw"
    lr: PositiveFloat = Field(default=0.002, description="Learning rate.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decoupled weight decay.")
    betas: tuple[Fraction, Fraction] = Field(default=(0.9, 0.999), description="Decay of the two running means.")
    eps: PositiveFloat = Field(default=1e-8, description="Keeps the division finite.")


class Adam(_Keys):
    """Adam."""

    use: Literal["adam"] = "adam"
    lr: PositiveFloat = Field(default=0.002, description="Learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty.")
    betas: tuple[Fraction, Fraction] = Field(default=(0.9, 0.999), description="Decay of the two running means.")
    eps: PositiveFloat = Field(default=1e-8, description="Keeps the division finite.")


class SGD(_Keys):
    """Stochastic gradient descent."""

    use: Literal["sgd"] = "sgd"
    lr: PositiveFloat = Field(default=0.1, description="Learning rate.")
    weight_decay: float = Field(default=0.0, ge=0, description="L2 penalty.")
    momentum: Fraction = Field(default=0.0, description="Momentum.")
    nesterov: bool = Field(default=False, description="Look ahead along the momentum.")

    @model_validator(mode="after")
    def _momentum_for_nesterov(self) -> SGD:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0; set momentum: 0.9")
        return self


class _Schedule(_Keys):
    use: str
    warmup_ratio: Fraction = Field(default=0.0, description="Share of training in which the rate rises from 0.")


class Constant(_Schedule):
    """The rate stays."""

    use: Literal["constant"] = "constant"


class Linear(_Schedule):
    """The rate falls in a straight line."""

    use: Literal["linear"] = "linear"
    final_ratio: float = Field(default=0.0, ge=0, le=1, description="Where it ends, as a share of the rate.")


class Cosine(_Schedule):
    """The rate falls along half a cosine."""

    use: Literal["cosine"] = "cosine"
    final_ratio: float = Field(default=0.0, ge=0, le=1, description="Where it ends, as a share of the rate.")


class Plateau(_Schedule):
    """The rate falls by a factor whenever the dev score has not risen for some epochs."""

    use: Literal["plateau"] = "plateau"
    factor: float = Field(default=0.5, gt=0, lt=1, description="What the rate is multiplied by.")
    patience: int = Field(default=2, gt=0, description="Epochs without a better dev score before that.")


class Train(_Keys):
    """How the pipeline is trained."""

    epochs: PositiveInt = Field(default=30, description="Passes over the training data.")
    batch_tokens: PositiveInt = Field(default=1024, description="Padded tokens a batch.")
    batch_size: PositiveInt | None = Field(
        default=None, description="Most records a batch; null: as many as the tokens allow."
    )
    epoch_steps: PositiveInt | None = Field(
        default=None,
        description="Steps of an epoch, where texts are one (head lm, packed); null: as many as go over all of them.",
    )
    optimizer: Annotated[AdamW | Adam | SGD, Field(discriminator="use")] = Field(
        default=AdamW(), description="Optimizer."
    )
    schedule: Annotated[Constant | Linear | Cosine | Plateau, Field(discriminator="use")] = Field(
        default=Constant(), description="How the learning rate changes."
    )
    clip: PositiveFloat | None = Field(default=5.0, description="Greatest norm of the gradient; null: no limit.")
    accumulate: PositiveInt = Field(default=1, description="Batches a step.")
    patience: PositiveInt | None = Field(
        default=None, description="Epochs without a better dev score before training stops; null: never."
    )
    metric: str | None = Field(
        default=None,
        description="The dev score that says which weights are best, as bleu or slots.f1; null: the first one. "
        "Behind a minus less is better, as it is anyway of error rates, mae, rmse and perplexity.",
    )
    average: Fraction | None = Field(
        default=None, description="Decay of the moving average of the weights that is shipped; null: none."
    )
    checkpoint_steps: PositiveInt = Field(default=500, description="Steps between checkpoints.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32",
        description="What the stages compute in while training; weights, dev scores and the bundle stay fp32.",
    )
    seed: int = Field(default=1, ge=0, description="Random seed.")
    threads: PositiveInt | None = Field(
        default=None, description="Threads of the processor; null: as many as there are."
    )


MOST_TOKENS = 100_000  # of one text, in training and of any bundle


class Export(_Keys):
    """What the shipped graph is like."""

    precision: Literal["fp32", "int8"] = Field(
        default="fp32",
        description="Precision of its numbers; int8: weights of matrix products and look-ups, a quarter of the size.",
    )
    opset: int = Field(default=18, ge=18, le=23, description="Version of the ONNX operators.")
    explain: bool = Field(default=False, description="Whether it also gives attention weights, for `seqpipe explain`.")
    max_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MOST_TOKENS,
        description="The most tokens of a text; null: four times as many as the longest text seen, 1,000 at least.",
    )
    max_beams: int = Field(
        default=100,
        ge=1,
        le=MOST_TOKENS,
        description="The most beams, and the most answers, that a caller may ask for.",
    )


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{text!r} is no distribution with versions, such as 'acme-conv>=1,<2': {reason}") from None
    return text


Allowed = Annotated[str, AfterValidator(_requirement), Means("a distribution with versions, such as 'acme-conv>=1,<2'")]


class PluginKeys(_Keys):
    """Which installed plugins may be used, and which versions were."""

    allow: tuple[Allowed, ...] | None = Field(
        default=None,
        description="Distributions, with version ranges, whose plugins may be used; null: all. Ours always may.",
    )
    versions: dict[str, str] = Field(
        default={},
        description="Distribution and version of each component of a run, by its key; a change is reported.",
    )

    @property
    def requirements(self) -> tuple[Requirement, ...] | None:
        return None if self.allow is None else tuple(map(Requirement, self.allow))


class DataKeys(_Keys):
    """The keys of `data` beside `reader`; paths are relative to the YAML."""

    train: PathText = Field(description="The file to learn from.")
    dev: PathText | None = Field(default=None, description="The file to choose the best epoch by.")
    test: PathText | Paths | None = Field(default=None, description="The file to report on, or several by name.")
    misaligned: Literal["error", "widen", "skip"] = Field(
        default="error", description="What to do with a span that cuts a word."
    )
    unseen_labels: Literal["error", "miss"] = Field(
        default="error", description="What to do with a label of dev or test that training lacks: stop, or miss it."
    )


CHOICES: Mapping[str, Mapping[str, type[BaseModel]]] = {
    "optimizer": {"adamw": AdamW, "adam": Adam, "sgd": SGD},
    "schedule": {"constant": Constant, "linear": Linear, "cosine": Cosine, "plateau": Plateau},
}
