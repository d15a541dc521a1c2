"""Warm start: the stages of a pipeline that `init` initialises from trained runs, their rows matched by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from seqpipe.config.contract import by_source, declared_features, describe, has_member, member
from seqpipe.config.init_from import Stage, counterpart, differing, relative_path
from seqpipe.config.loader import Component, Config
from seqpipe.config.run_layout import CHECKPOINTS
from seqpipe.config.signature import INIT, wired
from seqpipe.errors import ConfigError, PluginError
from seqpipe.features.sources import sources_of
from seqpipe.features.vocabulary import SPECIALS, UNK
from seqpipe.training import checkpoint
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.network import Network, errors_of

Names = dict[str, Sequence[str]]  # for each wired argument, the meaning of its ids
State = dict[str, Tensor]
Axes = Sequence[str | None]

MIN_KNOWN_SHARE = 0.5  # a smaller share of known tokens is reported


def warm_start(network: Network, config: Config) -> list[str]:
    """Initialise every stage with `init` from the run, or from the files, that it names; return a report, a line each.

    Names that the run does not have keep their new rows; rows of the run's other names are dropped.

    Raises:
        ConfigError: The shapes of a stage differ from those of the run, and its names do not explain it; or files do
            not fit the stage.
        PluginError: A stage does not declare the names of its rows.
    """
    artifacts, weights = cache(Artifacts.load), cache(lambda folder: checkpoint.load_best(folder / CHECKPOINTS))
    lines = []
    texts = {source.tokenizer.key: name for name, source in by_source(config.inputs).items() if source.tokenizer}
    for chosen in config.components:
        if chosen.kind == "tokenizer" and (folder := chosen.common_keys.get("init")):
            unknown = _unknown(network.artifacts, texts[chosen.key]) if chosen.key in texts else ""
            lines.append(f"{chosen.key}: taken from {relative_path(folder)}{unknown}")
            for change in differing(chosen, counterpart(chosen, folder)):
                lines.append(f"note: {chosen.key}: {change}, which has no effect: the tokenizer is the run's")
    heads = dict(zip((stage.key for stage in config.head), network.artifacts.tasks, strict=True))
    for stage, module in network.stages:
        if folder := stage.common_keys.get("init"):
            run_stage, run_artifacts = counterpart(stage, folder), artifacts(folder)
            run_task = run_artifacts.tasks[run_stage.number] if stage.kind == "head" else _sole(run_artifacts)
            task = heads.get(stage.key) or _sole(network.artifacts)
            names = _names(network.artifacts, task, network.source_of.get(stage.key, ""))
            start = _WarmStart(stage, module, run_stage, names, _names(run_artifacts, run_task, run_stage.source))
            if run_stage.parts:
                # A stage that joins several of the run has the weights of each by the name of the part.
                parts = {name: _component_weights(weights(folder), *part) for name, part in run_stage.parts.items()}
                state = {f"{part}.{name}": tensor for part, values in parts.items() for name, tensor in values.items()}
            else:
                state = _component_weights(weights(folder), stage.kind, run_stage.number)
            start.load(state)
            lines += start.report()
        elif init := stage.options.get(INIT):
            with errors_of(stage, "`load_init`"):
                lines.append(f"{stage.key}: starts from {member(module, 'load_init')(init)}")
    return lines


class _WarmStart:
    """One stage that is initialised from a stage of a run."""

    def __init__(self, stage: Component, module: nn.Module, run_stage: Stage, names: Names, run_names: Names):
        self.stage, self.module, self.run_stage, self.names, self.run_names = stage, module, run_stage, names, run_names
        self.run = relative_path(stage.common_keys["init"])
        self.rows: Mapping[str, Axes | None] = member(module, "rows")
        if has_member(module, "rows"):
            return
        # Ids may have another meaning than in the run, and the stage does not declare them.
        wired_names = {*wired(stage.cls)}
        unsure = (wired_names & names.keys()) | ({*declared_features(stage)} if "sizes" in wired_names else set())
        for name in sorted(unsure):
            if [*names[name]] != [*run_names.get(name, ())]:
                raise PluginError(
                    f"{stage.key}: {describe(stage)}: its {name} differs from that of {self.run}, and the class "
                    f"does not declare the names of its parameters' rows; give it `rows`, such as "
                    f'rows = {{"table.weight": ("{name}",)}}, or delete init'
                )

    def load(self, state: State) -> None:
        """Load a state of the run into the stage."""
        join_state, split_state = member(self.module, "join_state"), member(self.module, "split_state")
        old, fresh = join_state(state), join_state(self.module.state_dict())
        for name in sorted(old.keys() ^ fresh.keys()):
            if self.rows.get(name, ()) is not None:
                where = f"only in {self.run}" if name in old else f"not in {self.run}"
                raise self._mismatch_error(f"the parameter {name} is {where}")
        moved: State = {}
        for name, tensor in fresh.items():
            axes = self.rows.get(name, ())
            if axes is None:
                moved[name] = tensor
                continue
            # The run's rows are moved to the positions of our names, axis by axis; other names keep their new rows.
            known = old[name]
            named = {axis: what for axis, what in enumerate(axes) if what}
            self._check_shapes(name, tensor, known, named)
            places = []
            for axis, what in named.items():
                places_in_run = {item: i for i, item in enumerate(self.run_names[what])}
                pairs = [(i, places_in_run[item]) for i, item in enumerate(self.names[what]) if item in places_in_run]
                known = known.index_select(axis, torch.tensor([j for _, j in pairs], dtype=torch.int64))
                places.append((axis, torch.tensor([i for i, _ in pairs], dtype=torch.int64)))
            moved[name] = _put(tensor, known, places)
        self.module.load_state_dict(split_state(moved))

    def report(self) -> Iterator[str]:
        """Yield messages about the run that the stage is initialised from and the names that both have."""
        at = "" if self.run_stage.key == self.stage.key else f" ({self.run_stage.key})"
        used = dict.fromkeys(axis for axes in self.rows.values() for axis in axes or () if axis)
        compared = []
        for name in used:
            names, run_names = self.names[name], {*self.run_names[name]}
            new = [item for item in names if item not in run_names]
            if name == "labels" and names:
                # All labels of the run are kept and new ones added; of other names the run knows some.
                few = ", ".join(new[:5]) + (", …" if len(new) > 5 else "")
                more = f", and {len(new):,} new: {few}" if new else ""
                compared.append(f"its {len(run_names):,} labels are kept{more}")
            elif names:
                noun = {"vocabulary": "tokens", "target_vocabulary": "target tokens"}.get(name, name)
                specials = len({*names} & {*SPECIALS})
                count = len(names) - specials
                compared.append(f"{count - len(new):,} of {count:,} {noun} are known there")
        yield f"{self.stage.key}: starts from {self.run}{at}{': ' if compared else ''}{'; '.join(compared)}"
        words = [name for name in used if name in ("vocabulary", "target_vocabulary")]
        for name in words:
            tokens = self.names[name][len(SPECIALS) :]
            known = len({*tokens} & {*self.run_names[name]})
            if known < MIN_KNOWN_SHARE * len(tokens):
                where = "tokenizer" if name == "vocabulary" else "target_tokenizer"
                yield (
                    f"note: {self.stage.key}: the rows of the other {len(tokens) - known:,} tokens start at random; "
                    f"to keep the run's own vocabulary write init: {self.run} beside the `use` of the {where} too"
                )
            elif known < len(tokens) and self.stage.common_keys.get("freeze"):
                yield f"note: {self.stage.key}: it is frozen, so the rows of unknown tokens remain random"

    def _check_shapes(self, name: str, fresh: Tensor, known: Tensor, named: Mapping[int, str]) -> None:
        for axis, what in named.items():
            if fresh.dim() <= axis or len(self.names[what]) != fresh.shape[axis]:
                declared = f"`rows` declares that axis {axis} of {name} is by {what}"
                counts = f"of which there are {len(self.names[what])}; its shape is {[*fresh.shape]}"
                raise PluginError(f"{self.stage.key}: {describe(self.stage)}: {declared}, {counts}")
        others = [axis for axis in range(fresh.dim()) if axis not in named]
        if fresh.dim() != known.dim() or any(fresh.shape[axis] != known.shape[axis] for axis in others):
            shapes = f"{[*known.shape]} in {self.run}, {[*fresh.shape]} here"
            raise self._mismatch_error(f"the parameter {name} has the shape {shapes}")

    def _mismatch_error(self, what: str) -> ConfigError:
        options = differing(self.stage, self.run_stage)
        fix = f"restore the old options ({'; '.join(options)})" if options else ""
        fix = fix or f"its options are the same, so an earlier stage has another width than in {self.run}: change that"
        return ConfigError([self.stage.problem(f"{describe(self.stage)}: {what}; {fix}, or delete init")])


def _put(into: Tensor, rows: Tensor, places: Sequence[tuple[int, Tensor]]) -> Tensor:
    """Return the tensor with these rows at these positions of some axes; without positions, the rows themselves."""
    if not places:
        return rows
    (axis, index), *other_places = places
    return into.index_copy(axis, index, _put(into.index_select(axis, index), rows, other_places))


def _unknown(artifacts: Artifacts, source: str) -> str:
    counts = artifacts.counts[source]
    share = counts[SPECIALS.index(UNK)] / max(1, sum(counts))
    tokens = len(artifacts.vocabularies[source])
    return f", with {tokens:,} tokens; {100 * share:.1f} % of the tokens of the new texts are unknown to it"


def _names(artifacts: Artifacts, task: FittedTask | None, source: str) -> Names:
    featurizer = sources_of(artifacts.featurizer).get(source)
    features = {name: feature.names for name, feature in featurizer.features.items()} if featurizer else {}
    task_names = {"labels": task.labels, "target_vocabulary": task.target_vocabulary or ()} if task else {}
    vocabulary = artifacts.vocabularies.get(source, ())
    return {"vocabulary": vocabulary, "labels": (), "target_vocabulary": (), **task_names, **features}


def _sole(artifacts: Artifacts) -> FittedTask | None:
    """Return the task that stages before the head may depend on; None for several heads."""
    return artifacts.tasks[0] if len(artifacts.tasks) == 1 else None


def _component_weights(weights: State, kind: str, number: int) -> State:
    prefix = f"{'heads' if kind == 'head' else kind}.{number}."
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
