"""The comparison of a graph with PyTorch accepts every right graph, and refuses every wrong one that matters.

Stability: the graph is right at every level of onnxruntime's optimisation, with one thread and two, with other
instructions of the processor, and on any generated texts. Power: faults are planted in a copy of the pipeline, whose
graph is then compared with the pipeline itself; those with an effect in float64 of 1e-3 and of 20 times float32's own
error are refused, and smaller ones are listed with their effect.

`SEQPIPE_TRAINED` names a folder in which the runs of the shipped pipelines are kept.
"""

import contextlib
import copy
import functools
import inspect
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import onnxruntime
import pytest
import torch
from doc_pages import ROOT
from gallery import gallery
from tiny_pipelines import QUIET, run_process

from seqpipe.api.model import Model
from seqpipe.config.loader import load_config
from seqpipe.errors import ParityError
from seqpipe.export.exporter import bundle_files, bundle_manifest
from seqpipe.export.graph import graph_without_weights, random_batches, with_weights
from seqpipe.export.parity.answers import DualPredictor
from seqpipe.export.parity.decisions import DecisionParity, ParityCase, in_float64, margins, option_inputs, own_error
from seqpipe.export.parity.gate import verify_parity
from seqpipe.features.document import Record
from seqpipe.features.sources import keep_rows
from seqpipe.runs.run_folder import load_trained, open_run
from seqpipe.runtime import session
from seqpipe.runtime.bundle import BundleContent
from seqpipe.training.data_forms import data_form
from seqpipe.training.evaluation import TrainedPipeline, predictor
from seqpipe.training.network import Network

SHIPPED = sorted(path.stem for path in (ROOT / "pipelines").glob("*.yaml"))
TEN = ["ner", "intent-lstm", "sentiment-cnn", "slots-and-intent", "digits"]
TEN += ["answer-span", "sort", "dates", "summarise", "gpt"]
SMALL = ("spans", "text")
SEEDED, SEEDS = ("sort", "dates"), range(1, 21)
RECORDS = 30  # of a test set
EFFECT, OWN = 1e-3, 20  # of a fault, absolute and in errors of float32, from which it has to be refused
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
Trained = Callable[[str], Path]


@dataclass(frozen=True)
class Subject:
    """A trained pipeline, what it is compared on, and its graph without weights."""

    pipeline: TrainedPipeline
    records: Sequence[Record]
    model: Any

    def gate(self, graph: bytes | None = None, seed: int = 1) -> dict[str, Any]:
        """Compare a graph, by default its own, with the pipeline; ParityError if it is refused."""
        graph = with_weights(self.model, self.network) if graph is None else graph
        manifest, files = bundle_manifest(self.pipeline), bundle_files(self.pipeline, graph)
        comparison = DualPredictor(self.pipeline, Model(BundleContent(Path("bundle"), manifest, files), "cpu"))
        comparison.seed = seed
        return verify_parity(comparison, self.records, QUIET)

    @property
    def network(self) -> Network:
        return self.pipeline.network

    def traced(self, network: Network) -> Any:
        return graph_without_weights(replace(self.pipeline, network=network))


def subject(folder: Path) -> Subject:
    """The pipeline of a run."""
    run = open_run(folder, QUIET)
    pipeline = load_trained(run)
    records = data_form(run.config).compared_records(folder)
    artifacts = pipeline.artifacts
    keep_rows(artifacts.featurizer, artifacts.featurizer.docs([artifacts.task.question(record) for record in records]))
    return Subject(pipeline, records[:: len(records) // RECORDS + 1], graph_without_weights(pipeline))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The run of a shipped pipeline, trained and exported when first asked for."""
    kept = os.environ.get("SEQPIPE_TRAINED")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("trained")
    shutil.copytree(ROOT / "pipelines", folder / "pipelines", dirs_exist_ok=True)

    @functools.cache
    def run(name: str) -> Path:
        path = folder / "pipelines" / f"{name}.yaml"
        for need in load_config(path, runs=False, files=False).needs:
            if need.run:
                run(need.run.stem)
        done = run_process("run", path, "--device", "cpu", folder=folder)
        assert done.code == 0, f"{name}: {done.err[-2_000:]}"
        return folder / "runs" / name

    return run


@pytest.fixture(scope="module")
def small() -> dict[str, Subject]:
    """Two pipelines of the tests' own: spans by a CRF, and texts by a recurrent decoder."""
    torch.set_num_threads(1)
    return {name: subject(gallery(name).run) for name in SMALL}


# Stability: a right graph is never refused.


@contextlib.contextmanager
def opened(level: str = LEVELS[-1], threads: int = 1) -> Iterator[None]:
    """Open graphs with this level of optimisation, and so many threads for a product."""
    open_on_device = session.open_on_device

    def changed(runtime: Any, model: bytes, options: Any, device: str, refused: str = "") -> Any:
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.intra_op_num_threads = threads
        return open_on_device(runtime, model, options, device, refused)

    with mock.patch.object(session, "open_on_device", changed):
        yield


@pytest.mark.parametrize("name", SMALL)
def test_a_right_graph_is_accepted_however_optimised_and_on_other_texts(small: dict[str, Subject], name: str) -> None:
    for seed, level, threads in ((1, LEVELS[0], 1), (2, LEVELS[1], 2)):
        with opened(level, threads):
            small[name].gate(seed=seed)
    texts = (next(random_batches(small[name].network.artifacts, seed, (3,), (7,))) for seed in (1, 2))
    assert len({feeds["ids"].tobytes() for feeds in texts}) == 2


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_pipeline_runs_to_a_bundle(trained: Trained, name: str) -> None:
    assert (trained(name) / "bundle" / "model.onnx").exists()


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", TEN)
def test_a_shipped_pipeline_is_accepted_with_other_roundings(trained: Trained, name: str, tmp_path: Path) -> None:
    chosen = subject(trained(name))
    for level, threads in (*((level, 1) for level in LEVELS), (LEVELS[-1], 2)):
        with opened(level, threads):
            chosen.gate()
    for variable, value in (("MKL_CBWR", "COMPATIBLE"), ("ATEN_CPU_CAPABILITY", "default")):
        bundle = tmp_path / variable
        done = run_process("export", trained(name), "-o", bundle, folder=tmp_path, **{variable: value})
        assert done.code == 0, f"{variable}={value}: {done.err[-2_000:]}"


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", SEEDED)
def test_a_shipped_pipeline_is_accepted_on_the_texts_of_any_seed(trained: Trained, name: str) -> None:
    chosen = subject(trained(name))
    for seed in SEEDS:
        chosen.gate(seed=seed)


# Power: a graph with a fault that matters is refused.


def copy_of(network: Network) -> Network:
    return copy.deepcopy(network, {id(network.artifacts): network.artifacts})


class Fault(NamedTuple):
    """A copy of a pipeline with a fault, and its graph."""

    name: str
    network: Network
    graph: bytes


def changed_method(module: Any, name: str, change: Callable[[str, Any], Any]) -> None:
    """Give a module a method that is called with changed values; a copy of the module has it too."""
    method = getattr(type(module), name)
    names = [*inspect.signature(method).parameters][1:]

    @functools.wraps(method)
    def changed(self: Any, *values: Any, **options: Any) -> Any:
        return method(self, *(change(*pair) for pair in zip(names, values, strict=False)), **options)

    module.__class__ = type(type(module).__name__, (type(module),), {name: changed})


def leaks(name: str, value: Any) -> Any:
    return torch.ones_like(value) if name == "mask" else value


def ignoring(network: Network, ending: str) -> Network:
    """A copy that ignores the decode options whose names end so: they are constants, fixed at export."""
    made = copy_of(network)

    class Fixed(Network):
        def decide(self, features: Any, options: Any, explain: bool = False) -> Any:
            read = {name: value for name, value in options.items() if not name.endswith(ending)}
            return super().decide(features, read, explain)

    made.__class__ = Fixed
    return made


def faults(subject: Subject, few: bool) -> Iterator[Fault]:
    """Yield planted faults, each with its graph: scaled tensors, leaking masks, fixed options, another rank."""
    matrices = [name for name, weight in subject.network.named_parameters() if weight.dim() > 1]
    for name in [matrices[-1]] if few else dict.fromkeys(matrices[i * (len(matrices) - 1) // 3] for i in range(4)):
        made = copy_of(subject.network)
        with torch.no_grad():
            dict(made.named_parameters())[name].mul_(1.02)
        yield Fault(f"{name} scaled by 1.02", made, with_weights(subject.model, made))
    for place in range(len(subject.network.stages) - few):
        made = copy_of(subject.network)
        component, module = made.stages[place]
        method = "decide" if component.kind == "head" else "forward"
        if component.kind != "embedding" and "mask" in inspect.signature(getattr(type(module), method)).parameters:
            changed_method(module, method, leaks)
            yield Fault(f"{component.key} reads the padding", made, with_weights(subject.traced(made), made))
    endings = {"": "decode options are fixed", "length_penalty": "beams are ranked by another key"}
    for option, name in [*endings.items()][: 2 - few]:
        if any(key.endswith(option) for key in subject.pipeline.options):
            made = ignoring(subject.network, option)
            yield Fault(name, made, with_weights(subject.traced(made), made))


def effect(subject: Subject, fault: Fault) -> tuple[float, float]:
    """The largest effect of a fault on an output in float64, and float32's own error there, on compared inputs.

    An effect counts if it is `OWN` times the error; another decision has the effect of its margin.
    """
    ours = predictor(subject.network).run
    parity = DecisionParity(subject.network, ours, ours, subject.pipeline.options)
    faulty = DecisionParity(fault.network, ours, ours, subject.pipeline.options)
    largest = (0.0, 0.0)
    for chosen in parity.trials.together():
        for feeds in random_batches(subject.network.artifacts, 1, (3,), (2, 7)):
            options = option_inputs(feeds, parity.options, parity.trials.with_short_texts(chosen))
            batch = parity.batch(feeds, options)
            other = faulty.judge.decide(feeds | options)
            assert (parity.judge.fault, faulty.judge.fault) == ("", "")
            for pair in row_effects(parity, batch, other):
                if pair[0] >= OWN * pair[1]:
                    largest = max(largest, pair)
    return largest


def row_effects(
    parity: DecisionParity, batch: ParityCase, other: dict[str, np.ndarray]
) -> Iterator[tuple[float, float]]:
    """Yield effect and own error for each output and row."""
    exact = batch.reference
    decisions = [name for name, array in exact.items() if array.dtype.kind == "i"]
    if any(other[name].shape != exact[name].shape for name in exact):
        yield np.inf, 0.0
        return
    differ = np.any([(other[name] != exact[name]).reshape(len(other[name]), -1).any(1) for name in decisions], 0)
    apart = parity.judge.compute(lambda network: margins(network, in_float64(batch.feeds), exact, other))
    for row in range(len(differ)):
        if differ[row]:
            yield float(apart[:, row].max()), 0.0
            continue
        for name in exact.keys() - {*decisions}:
            yield (
                float(own_error(other[name], exact[name])[row]),
                float(own_error(batch.expected[name], exact[name])[row]),
            )


def check_faults(subject: Subject, least: int, few: bool = False) -> None:
    """Every planted fault with an effect is refused; those with a smaller one are listed."""
    found = []
    for fault in faults(subject, few):
        size, own = effect(subject, fault)
        try:
            subject.gate(fault.graph)
            refused = False
        except ParityError:
            refused = True
        found.append((fault.name, size, own, refused))
        print(f"{fault.name}: effect {size:.2g}, own error {own:.1g}, {'refused' if refused else 'accepted'}")
    matter = [(name, refused) for name, size, own, refused in found if size >= EFFECT]
    assert len(matter) >= least, found
    assert [name for name, refused in matter if not refused] == [], found


@pytest.mark.parametrize("name", SMALL)
def test_planted_faults_are_refused(small: dict[str, Subject], name: str) -> None:
    check_faults(small[name], 3, few=True)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", TEN)
def test_faults_planted_in_a_shipped_pipeline_are_refused(trained: Trained, name: str) -> None:
    check_faults(subject(trained(name)), 3)
