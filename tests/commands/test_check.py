"""`check` shows in seconds that a pipeline will export, and what would go wrong if it will not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from factory import LEAN, QUIET, labelling, tiny, toy_encoders, writing
from torch import Tensor, nn

from seqpipe.config.loader import load
from seqpipe.errors import DataError, ExportError, ParityError, PluginError, TrainingError, UsageError
from seqpipe.pipeline.check import check_export


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_sound_pipeline_is_built_exported_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from seqpipe.console import Console

    before = sorted(tmp_path.iterdir())
    result = check_export(tiny(tmp_path, *LEAN, "encoder=sound", **toy_encoders()), Console())
    assert (result.decisions, result.ties) == (12, 0)
    assert result.worst_score < 1e-5
    said = capsys.readouterr().err
    assert "weights on 36 records, loss " in said
    assert "bytes, inputs ids, mask" in said
    assert "answers the same in PyTorch and onnxruntime: 12 decisions" in said
    assert sorted(tmp_path.iterdir())[: len(before)] == before
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("toy", "error", "told"),
    [
        ("unrolled", ExportError, "the pipeline does not export"),
        ("nomask", ParityError, "depends on values in the padding"),
        ("baked", ParityError, "decisions differ between PyTorch and onnxruntime"),
        ("rough", ParityError, r"(scores|opens|closes) differs by \d"),
        ("fails", ParityError, "onnxruntime fails at shape"),
    ],
)
def test_a_component_with_a_planted_fault_is_found(tmp_path: Path, toy: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        check_export(tiny(tmp_path, *LEAN, f"encoder={toy}", **toy_encoders()), QUIET)


def broken(fault: str) -> type:
    class Broken(nn.Module):
        """An encoder with a fault."""

        def __init__(self, dim: int):
            super().__init__()
            self.dim = dim

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            if fault == "raises":
                raise KeyError("missing")
            return x * float("nan") if fault == "nan" else x[..., :-1]

    return Broken


@pytest.mark.parametrize(
    ("fault", "error", "told"),
    [
        ("raises", PluginError, "encoder: encoder 'broken' of toys: `forward` raised KeyError: 'missing'"),
        (
            "shape",
            PluginError,
            r"encoder: encoder 'broken' of toys: `forward` returned x of shape .*, not \(B, T, 8\) as",
        ),
        ("nan", TrainingError, "the loss of the first batch is nan"),
    ],
)
def test_a_broken_component_ends_it_before_the_export(tmp_path: Path, fault: str, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        check_export(tiny(tmp_path, *LEAN, "encoder=broken", broken=("encoder", broken(fault))), QUIET)


def test_data_that_will_not_do_ends_it(tmp_path: Path) -> None:
    config = load(writing(tmp_path), ["head.target=gone"])
    with pytest.raises(DataError, match=r"train\.jsonl:1: no field 'gone'"):
        check_export(config, QUIET)


def test_an_unknown_metric_is_reported_with_the_scores_there_are(tmp_path: Path) -> None:
    file = writing(tmp_path)
    with pytest.raises(UsageError, match=r"no dev score 'blue'; did you mean 'bleu'\? \(there is: .*perplexity"):
        check_export(load(file, ["train.metric=blue"]), QUIET)
    for metric in ("bleu", "-perplexity"):
        assert check_export(load(file, [f"train.metric={metric}"]), QUIET).decisions


def test_the_metric_of_a_head_that_calibrates_on_dev_is_checked(tmp_path: Path) -> None:
    file = labelling(tmp_path, {"head": {"use": "label", "target": "label", "calibrate": True}})
    assert check_export(load(file, ["train.metric=accuracy"]), QUIET).decisions
    with pytest.raises(UsageError, match="no dev score 'acuracy'; did you mean 'accuracy'"):
        check_export(load(file, ["train.metric=acuracy"]), QUIET)
