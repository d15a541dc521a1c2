"""The stage at fault is named, whatever in the pipeline around it is sound."""

from pathlib import Path

import pytest
import torch
from factory import LEAN, QUIET, parts, tiny, toy_encoders
from torch import Tensor, nn

from seqpipe.errors import ExportError, ParityError, TrainingError
from seqpipe.export.diagnose import naming_stage_at_fault, stage_at_fault
from seqpipe.pipeline.check import check_export


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("toy", "told"),
    [
        ("unrolled", "the pipeline does not export"),
        ("nomask", "'x' of real tokens depends on values in the padding; use `mask`"),
        ("baked", "'x' differs between PyTorch and the graph"),
        ("rough", "'x' differs between PyTorch and the graph"),
        ("fails", "its graph fails at another shape than the example's"),
    ],
)
def test_of_several_encoders_the_one_at_fault_is_named(tmp_path: Path, toy: str, told: str) -> None:
    config = tiny(tmp_path, *LEAN, f"encoder=[sound, {toy}, {{use: sound, freeze: true}}]", **toy_encoders())
    with pytest.raises(ExportError) as caught:
        check_export(config, QUIET)
    assert f"at fault: encoder.1: encoder {toy!r} of toys: {told}" in str(caught.value)


def test_an_encoder_that_counts_the_padding_in_is_named(tmp_path: Path) -> None:
    class Width(nn.Module):
        """Silences the padding, and divides by the width of the batch."""

        def __init__(self, dim: int):
            super().__init__()
            self.dim = dim

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x + (x * mask[..., None]).sum(1, keepdim=True) / x.shape[1]

    config = tiny(tmp_path, *LEAN, "encoder=width", width=("encoder", Width))
    with pytest.raises(ParityError) as caught:
        check_export(config, QUIET)
    assert "a row alone, without the batch around it" in str(caught.value)
    assert "encoder 'width' of toys: 'x' of a row depends on other rows and the padding" in str(caught.value)


def test_a_stage_that_makes_no_numbers_is_named(tmp_path: Path) -> None:
    class Nan(nn.Module):
        """Divides by nothing."""

        def __init__(self, dim: int):
            super().__init__()
            self.dim = dim

        def forward(self, x: Tensor) -> Tensor:
            return x / torch.zeros(1)

    config = tiny(tmp_path, *LEAN, "encoder=[sound, nan]", nan=("encoder", Nan), **toy_encoders())
    with pytest.raises(TrainingError, match=r"encoder.1: encoder 'nan' of toys: `forward` returned NaN or infinity"):
        check_export(config, QUIET)


def test_when_all_stages_are_sound_it_is_the_head(tmp_path: Path) -> None:
    pipeline, _ = parts(tiny(tmp_path, *LEAN, "encoder=sound", **toy_encoders()))
    told = "head: head 'tags' of seqpipe-nlp: the stages before it export and answer the same"
    differ = ParityError("two differ")
    differ.outputs = ["scores"]
    with pytest.raises(ParityError, match=f"^two differ\nat fault: {told}; is a Python"):  # noqa: SIM117
        with naming_stage_at_fault(pipeline, 18):
            raise differ
    # An error about nothing that the head puts out, such as a metric, shows no fault of it.
    assert stage_at_fault(pipeline, 18) == ""
    with pytest.raises(ParityError, match=r"^too many ties$"), naming_stage_at_fault(pipeline, 18):
        raise ParityError("too many ties")


def test_an_error_that_names_the_stage_is_left_as_it_is(tmp_path: Path) -> None:
    pipeline, _ = parts(tiny(tmp_path, *LEAN, "encoder=sound", **toy_encoders()))
    with pytest.raises(ExportError, match=r"^encoder 'sound' of toys: no$"), naming_stage_at_fault(pipeline, 18):
        raise ExportError("encoder 'sound' of toys: no")
