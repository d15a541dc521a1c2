"""The stage at fault is named, whatever in the pipeline around it is sound."""

from pathlib import Path

import pytest
import torch
from tiny_pipelines import QUIET, SMALL_TAGGER, build_parts, load_tagger, toy_encoders
from torch import Tensor, nn

from seqpipe.errors import ExportError, ParityError, TrainingError
from seqpipe.export.diagnose import naming_stage_at_fault, stage_at_fault
from seqpipe.runs.check import check_export

AT_FAULT = [
    ("unrolled", "the pipeline does not export"),
    ("nomask", "'x' of real tokens depends on values in the padding; use `mask`"),
    ("baked", "'x' differs between PyTorch and the graph"),
    ("rough", "'x' differs between PyTorch and the graph"),
    ("fails", "its graph fails at another shape than the example's"),
]


@pytest.mark.parametrize(("toy", "message"), AT_FAULT)
def test_of_several_encoders_the_one_at_fault_is_named(tmp_path: Path, toy: str, message: str) -> None:
    config = load_tagger(
        tmp_path, *SMALL_TAGGER, f"encoder=[sound, {toy}, {{use: sound, freeze: true}}]", **toy_encoders()
    )
    with pytest.raises(ExportError) as caught:
        check_export(config, QUIET)
    assert f"at fault: encoder.1: encoder {toy!r} of toys: {message}" in str(caught.value)


class Toy(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.dim = dim


class Width(Toy):
    """Masks the padding, and divides by the width of the batch."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + (x * mask[..., None]).sum(1, keepdim=True) / x.shape[1]


class Nan(Toy):
    """Divides by zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.zeros(1)


def test_an_encoder_that_counts_the_padding_in_or_returns_nan_is_named(tmp_path: Path) -> None:
    toys = {"width": ("encoder", Width), "nan": ("encoder", Nan), **toy_encoders()}
    with pytest.raises(ParityError, match="a row alone, without the batch around it") as caught:
        check_export(load_tagger(tmp_path, *SMALL_TAGGER, "encoder=width", **toys), QUIET)
    assert "encoder 'width' of toys: 'x' of a row depends on other rows and the padding" in str(caught.value)
    with pytest.raises(TrainingError, match=r"encoder.1: encoder 'nan' of toys: `forward` returned NaN or infinity"):
        check_export(load_tagger(tmp_path, *SMALL_TAGGER, "encoder=[sound, nan]", **toys), QUIET)


def test_when_all_stages_are_sound_it_is_the_head_unless_the_error_names_a_stage_or_no_output(tmp_path: Path) -> None:
    pipeline, _ = build_parts(load_tagger(tmp_path, *SMALL_TAGGER, "encoder=sound", **toy_encoders()))
    head = "head: head 'tags' of seqpipe-nlp: the stages before it export and answer the same"
    differ = ParityError("two differ")
    differ.outputs = ["scores"]
    for error, message in (
        (differ, f"^two differ\nat fault: {head}; is a Python"),
        (ParityError("too many ties"), r"^too many ties$"),  # an error about no output, such as a metric
        (ExportError("encoder 'sound' of toys: no"), r"^encoder 'sound' of toys: no$"),
    ):
        with pytest.raises(type(error), match=message), naming_stage_at_fault(pipeline, 18):
            raise error
    assert stage_at_fault(pipeline, 18) == ""
