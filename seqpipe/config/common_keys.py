"""The common keys: those that may stand beside any `use`, whatever the component's own options are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from seqpipe.types import Means

Text = Annotated[str, Field(min_length=1)]


class CommonKeys(BaseModel):
    """Types, defaults and meaning of the common keys; `COMMON_KEYS` says which kind of component has which."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")] | None = Field(
        default=None, description="Name of the head, for lists of heads; null: the value of `use`."
    )
    field: Text | tuple[Text, Text] = Field(
        default="text", description="The record field that is the input, or a list of two, which are read as a pair."
    )
    target: str | None = Field(
        default=None, min_length=1, description="The record field to learn; null: the one usual for the head's answer."
    )
    weight: float = Field(default=1.0, gt=0, description="The weight of this head's loss.")
    init: Annotated[str, Field(min_length=1), Means("a run's folder")] | None = Field(
        default=None, description="The folder of a trained run that it starts from; null: it begins afresh."
    )
    freeze: bool = Field(default=False, description="Whether its weights stay as they are.")
    lr: PositiveFloat | None = Field(default=None, description="A learning rate of its own; null: the optimizer's.")


_STAGE = ("use", "init", "freeze", "lr")
COMMON_KEYS: Mapping[str, tuple[str, ...]] = {
    "reader": ("use",),
    "tokenizer": ("use", "field", "init"),
    "embedding": _STAGE,
    "encoder": _STAGE,
    "head": (*_STAGE, "name", "target", "weight", "target_tokenizer"),
}
TARGET_TOKENIZER_KEYS = ("use", "init")
ALL_COMMON_KEYS = ("use", *CommonKeys.model_fields, "target_tokenizer")
