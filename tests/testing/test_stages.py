from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from faults import FAULTS, SOUND, AsksForMore, Chooses, Sound, SoundColumn, SoundLabel, Swallows
from torch import Tensor, nn

from seqpipe.testing import Report, check_embedding, check_encoder, check_head, report, stages
from seqpipe.testing.bench import Bench
from seqpipe.testing.graphs import EXPORT, PARITY, STANDARD, Graph
from seqpipe.testing.heads import head_checks
from seqpipe.testing.report import ROUND_TRIP, UNKNOWN, Subject, run_checks
from seqpipe.testing.stages import RESUMED, quiet, stage_checks
from seqpipe_plugins.heads.copy_seq2seq import CopySeq2Seq

CHECKS = {"encoder": check_encoder, "embedding": check_embedding, "head": check_head}
GRAPH = {EXPORT, STANDARD, PARITY}
SLOW = {RESUMED, *GRAPH}


def looked_at(name: str, folder: Path) -> Report:
    """The report on a planted fault; training and export are looked at where that is where the fault shows."""
    kind, cls, expected = FAULTS[name]
    bench = Bench(Subject(kind, cls, {}), folder)
    checks = [*stage_checks(bench), *(head_checks(bench) if kind == "head" else []), *Graph(bench).checks()]
    wanted = (GRAPH if GRAPH & expected else set()) | (expected & SLOW)
    with quiet():
        return run_checks(name, [check for check in checks if check.name not in SLOW - wanted])


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_stage_passes_every_check(kind: str) -> None:
    result = CHECKS[kind](SOUND[kind])
    assert not result.failed
    assert {finding.state for finding in result.findings} == {"ok"}
    assert set(SLOW) < {finding.check for finding in result.findings}


@pytest.mark.parametrize("field", ["dialect", "label"])
def test_a_stage_that_reads_another_field_of_the_record_passes(field: str, tmp_path: Path) -> None:
    """Whether the toy records have the field for a head, or only for this stage."""
    bench = Bench(Subject("embedding", SoundColumn, {"column": field}), tmp_path)
    with quiet():
        result = run_checks("column", [*stage_checks(bench), *Graph(bench).checks()])
    assert {finding.state for finding in result.findings} == {"ok"}, str(result)
    drawn = {doc.columns[field] for doc in bench.docs([3] * 4)}
    assert drawn == {"a", "b", "c"}


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_caught_by_its_check_and_by_no_other(name: str, tmp_path: Path) -> None:
    result = looked_at(name, tmp_path)
    assert {finding.check for finding in result.failed} == FAULTS[name][2], str(result)
    assert all(finding.message and finding.fix for finding in result.failed)


def test_a_head_that_chooses_on_dev_passes(tmp_path: Path) -> None:
    bench = Bench(Subject("head", Chooses, {}), tmp_path)
    with quiet():
        result = run_checks("chooses", [*stage_checks(bench), *head_checks(bench)])
    assert {finding.state for finding in result.findings} == {"ok"}, str(result)


def test_a_head_that_thinks_all_labels_equally_likely_at_first_passes(tmp_path: Path) -> None:
    class BeginsAtZero(SoundLabel):
        def __init__(self, dim: int, labels: Sequence[str]):
            super().__init__(dim, labels)
            nn.init.zeros_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)

    bench = Bench(Subject("head", BeginsAtZero, {}), tmp_path)
    with quiet():
        result = run_checks("zero", [*stage_checks(bench), *head_checks(bench)])
    assert not {finding.check for finding in result.failed} - {"import"}, str(result)  # this module imports the kit


def test_what_an_encoder_returns_of_padding_beside_x_is_its_own_affair(tmp_path: Path) -> None:
    class Gated(Sound):
        returns = ("x", "gates")

        def forward(self, x: Tensor, mask: Tensor) -> dict[str, Tensor]:
            vectors = super().forward(x, mask)["x"]
            return {"x": vectors, "gates": (x > 0).long()}

    bench = Bench(Subject("encoder", Gated, {}), tmp_path)
    with quiet():
        result = run_checks("gated", [*stage_checks(bench), *Graph(bench).checks()])
    assert not {finding.check for finding in result.failed} - {"import"}, str(result)  # this module imports the kit


def test_a_tie_is_known_by_the_heads_own_margin(tmp_path: Path) -> None:
    class Margin(SoundLabel):
        def margin(self, x: Tensor, mask: Tensor) -> Tensor:
            return x.new_full((x.shape[0],), 1e-5)

    decisions = {"label": np.array([0])}, {"label": np.array([2])}
    bench = Bench(Subject("head", Margin, {}), tmp_path)
    assert stages._tied(bench, bench.feeds([3]), *decisions, (0, 0))
    bench = Bench(Subject("head", SoundLabel, {}), tmp_path)
    assert not stages._tied(bench, bench.feeds([3]), *decisions, (0, 0))


def test_words_out_of_the_vocabulary_differ_by_their_place_for_a_head_that_copies(tmp_path: Path) -> None:
    """They have one embedding: if x were the same too, rounding would decide which of them is copied."""
    bench = Bench(Subject("head", CopySeq2Seq, {"hidden": 6, "embedding_dim": 4}), tmp_path)
    docs = bench.artifacts.featurizer.docs([{"words": [f"unknown{i}" for i in range(128)]}])
    features = {name: torch.from_numpy(array) for name, array in bench.artifacts.featurizer.collate(docs).items()}
    assert len(set(docs[0].ids)) == 1
    x = bench.pipeline().eval()(features)["x"][0]
    assert (torch.cdist(x, x) + torch.eye(len(x))).min() > 0.01


def test_every_check_of_stages_has_a_planted_fault() -> None:
    choosing = type("Choosing", (AsksForMore,), {"needs_dev": Chooses.needs_dev, "corrupt_batch": len})
    kinds = [report(Subject(kind, choosing, {})) for kind in ("encoder", "head")]
    names = {finding.check for kind_report in kinds for finding in kind_report.findings}
    assert names - {"import"} == set().union(*(expected for *_, expected in FAULTS.values()))  # see test_isolation


def test_what_is_wrong_is_told_with_its_cure_and_all_at_once() -> None:
    with pytest.raises(AssertionError) as caught:
        check_encoder(Swallows)
    message = str(caught.value)
    assert "2 of 4 checks failed" in message
    for part in (ROUND_TRIP, UNKNOWN, "'**options' would accept a misspelt option", "options follow a '*'"):
        assert part in message


def test_options_that_do_not_fit_are_named() -> None:
    with pytest.raises(AssertionError, match="droput: there is no such option"):
        check_encoder(Sound, droput=0.1)


def test_a_name_that_the_kit_does_not_give_is_told() -> None:
    with pytest.raises(AssertionError, match="asks for 'memory', which nothing provides"):
        check_encoder(AsksForMore)


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
