from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faulty_stages import (
    FAULTS,
    SOUND_STAGES,
    AnyOptions,
    CalibratedLabel,
    Sound,
    SoundColumn,
    SoundLabel,
    UnknownInput,
)
from torch import Tensor, nn

from seqpipe.testing import Report, check_embedding, check_encoder, check_head, stages
from seqpipe.testing.bench import Bench
from seqpipe.testing.graphs import EXPORT, PARITY, STANDARD, Graph
from seqpipe.testing.heads import head_checks
from seqpipe.testing.package import check_component
from seqpipe.testing.report import ROUND_TRIP, UNKNOWN, Check, Subject, run_checks
from seqpipe.testing.stages import RESUMED, quiet, stage_checks
from seqpipe_plugins.heads.copy_seq2seq import CopySeq2Seq

CHECKS = {"encoder": check_encoder, "embedding": check_embedding, "head": check_head}
GRAPH = {EXPORT, STANDARD, PARITY}
SLOW = {RESUMED, *GRAPH}


def examined(bench: Bench, *others: Check, without: Collection[str] = ()) -> Report:
    """The report of the checks of a stage and others, without those of these names."""
    with quiet():
        return run_checks("toy", [check for check in [*stage_checks(bench), *others] if check.name not in without])


@pytest.mark.parametrize("kind", SOUND_STAGES)
def test_a_sound_stage_passes_every_check(kind: str) -> None:
    result = CHECKS[kind](SOUND_STAGES[kind])
    assert not result.failed
    assert {finding.state for finding in result.findings} == {"ok"}
    assert set(SLOW) < {finding.check for finding in result.findings}


@pytest.mark.parametrize("field", ["dialect", "label"])
def test_a_stage_that_reads_another_field_of_the_record_passes(field: str, tmp_path: Path) -> None:
    """The toy records have the field for a head, or only for this stage."""
    bench = Bench(Subject("embedding", SoundColumn, {"column": field}), tmp_path)
    result = examined(bench, *Graph(bench).checks())
    assert {finding.state for finding in result.findings} == {"ok"}, str(result)
    assert {doc.columns[field] for doc in bench.docs([3] * 4)} == {"a", "b", "c"}


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_caught_by_its_check_and_by_no_other(name: str, tmp_path: Path) -> None:
    """Training and export are checked only if a fault is one of them."""
    kind, cls, expected = FAULTS[name]
    bench = Bench(Subject(kind, cls, {}), tmp_path)
    wanted = (GRAPH if GRAPH & expected else set()) | (expected & SLOW)
    of_heads = head_checks(bench) if kind == "head" else []
    result = examined(bench, *of_heads, *Graph(bench).checks(), without=SLOW - wanted)
    assert {finding.check for finding in result.failed} == expected, str(result)
    assert all(finding.message and finding.fix for finding in result.failed)


class BeginsAtZero(SoundLabel):
    def __init__(self, dim: int, labels: Sequence[str]):
        super().__init__(dim, labels)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)


@pytest.mark.parametrize("cls", [CalibratedLabel, BeginsAtZero])
def test_a_head_that_chooses_on_dev_and_one_whose_labels_are_equally_likely_at_first_pass(
    cls: type, tmp_path: Path
) -> None:
    bench = Bench(Subject("head", cls, {}), tmp_path)
    result = examined(bench, *head_checks(bench), without={"import"})  # this module imports the kit
    assert {finding.state for finding in result.findings} == {"ok"}, str(result)


def test_an_encoder_may_return_any_value_beside_x_in_the_padding(tmp_path: Path) -> None:
    class Gated(Sound):
        returns = ("x", "gates")

        def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
            return {"x": super().forward(x, mask)["x"], "gates": (x > 0).long()}

    bench = Bench(Subject("encoder", Gated, {}), tmp_path)
    result = examined(bench, *Graph(bench).checks(), without={"import"})  # this module imports the kit
    assert not result.failed, str(result)


def test_a_tie_is_known_by_the_margin_of_the_head(tmp_path: Path) -> None:
    class Margin(SoundLabel):
        def margin(self, x: Tensor, mask: Tensor) -> Tensor:
            return x.new_full((x.shape[0],), 1e-5)

    for cls, is_tie in ((Margin, True), (SoundLabel, False)):
        bench = Bench(Subject("head", cls, {}), tmp_path)
        decisions = {"label": np.array([0])}, {"label": np.array([2])}
        assert bool(stages._tied(bench, bench.feeds([3]), *decisions, (0, 0))) == is_tie


def test_words_out_of_the_vocabulary_differ_by_their_place_for_a_head_that_copies(tmp_path: Path) -> None:
    """They have one embedding: if x were the same too, rounding would decide which of them is copied."""
    bench = Bench(Subject("head", CopySeq2Seq, {"hidden": 6, "embedding_dim": 4}), tmp_path)
    docs = bench.artifacts.featurizer.docs([{"words": [f"unknown{i}" for i in range(128)]}])
    features = {name: torch.from_numpy(array) for name, array in bench.artifacts.featurizer.collate(docs).items()}
    assert len(set(docs[0].ids)) == 1
    x = bench.network().eval()(features)["x"][0]
    assert (torch.cdist(x, x) + torch.eye(len(x))).min() > 0.01


def test_every_check_of_stages_has_a_planted_fault() -> None:
    choosing = type("Choosing", (UnknownInput,), {"needs_dev": CalibratedLabel.needs_dev, "corrupt_batch": len})
    kinds = [check_component(Subject(kind, choosing, {})) for kind in ("encoder", "head")]
    names = {finding.check for kind_report in kinds for finding in kind_report.findings}
    assert names - {"import"} == set().union(*(expected for *_, expected in FAULTS.values()))  # see test_isolation


@pytest.mark.parametrize(
    ("cls", "options", "messages"),
    [
        (
            AnyOptions,
            {},
            [
                "2 of 4 checks failed",
                ROUND_TRIP,
                UNKNOWN,
                "'**options' would accept a misspelt",
                "options follow a '*'",
            ],
        ),
        (Sound, {"droput": 0.1}, ["droput: there is no such option"]),
        (UnknownInput, {}, ["asks for 'memory', which nothing provides"]),
    ],
)
def test_faults_are_reported_together_with_their_fixes(cls: type, options: dict[str, float], messages: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        check_encoder(cls, **options)
    assert [message for message in messages if message not in str(caught.value)] == []


def test_the_random_numbers_and_threads_of_the_caller_stay() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with quiet():
        torch.rand(5)
        assert torch.get_num_threads() == 1
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads
