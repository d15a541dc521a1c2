"""A fresh Pipeline in, the same with what trained runs know out: `init`, a stage at a time, rows by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from seqpipe.config.component import by_source, describe
from seqpipe.config.contract import declared_features, has_member, member
from seqpipe.config.init_from import Stage, counterpart, differing, told
from seqpipe.config.loader import Component, Config
from seqpipe.config.run_layout import CHECKPOINTS
from seqpipe.config.signature import wired
from seqpipe.errors import ConfigError, PluginError
from seqpipe.features.sources import sources_of
from seqpipe.features.vocabulary import SPECIALS, UNK
from seqpipe.training import checkpoint
from seqpipe.training.fit import Learned, Task
from seqpipe.training.pipeline import Pipeline

Names = dict[str, Sequence[str]]  # of what is wired in: what each of its ids stands for
State = dict[str, Tensor]
Axes = Sequence[str | None]

FEW = 0.5  # a smaller share of known tokens is worth a note


def begin(pipeline: Pipeline, config: Config) -> list[str]:
    """Gives every stage with `init` the weights of the run it names; returns what there is to say, a line each.

    Names that the run does not know keep their fresh rows, names that are gone are left out.

    Raises:
        ConfigError: A stage has other shapes than there, which no names explain.
        PluginError: A stage does not say which of its rows are whose.
    """
    learned, weights = cache(Learned.load), cache(_weights)
    lines = list(_tokenizers(pipeline.learned, config))
    heads = dict(zip((stage.key for stage in config.head), pipeline.learned.tasks, strict=True))
    for stage, module in pipeline.stages:
        if folder := stage.frame.get("init"):
            there, older = counterpart(stage, folder), learned(folder)
            task = older.tasks[there.number] if stage.kind == "head" else _sole(older)
            own = heads.get(stage.key) or _sole(pipeline.learned)
            mine = _names(pipeline.learned, own, pipeline.source_of.get(stage.key, ""))
            start = _Start(stage, module, there, mine, _names(older, task, there.source))
            start.take(_of_stage(weights(folder), stage.kind, there))
            lines += start.report()
    return lines


class _Start:
    """One stage that starts from one of a run."""

    def __init__(self, stage: Component, module: nn.Module, there: Stage, mine: Names, theirs: Names):
        self.stage, self.module, self.there, self.mine, self.theirs = stage, module, there, mine, theirs
        self.run = told(stage.frame["init"])
        self.rows: Mapping[str, Axes | None] = member(module, "rows")
        self._refuse_unnamed_rows()

    def take(self, state: State) -> None:
        """Loads a state of the run into the stage."""
        join_state, split_state = member(self.module, "join_state"), member(self.module, "split_state")
        old, fresh = join_state(state), join_state(self.module.state_dict())
        self._refuse_other_parts(old, fresh)
        made = {name: self._moved(name, tensor, old) for name, tensor in fresh.items()}
        self.module.load_state_dict(split_state(made))

    def report(self) -> Iterator[str]:
        """What it starts from, and what of its names is known there."""
        at = "" if self.there.key == self.stage.key else f" ({self.there.key})"
        used = dict.fromkeys(axis for axes in self.rows.values() for axis in axes or () if axis)
        compared = [self._compared(name) for name in used if self.mine[name]]
        yield f"{self.stage.key}: starts from {self.run}{at}{': ' if compared else ''}{'; '.join(compared)}"
        words = [name for name in used if name in ("vocabulary", "target_vocabulary")]
        for name in words:
            tokens = self.mine[name][len(SPECIALS) :]
            known = len({*tokens} & {*self.theirs[name]})
            if known < FEW * len(tokens):
                where = "tokenizer" if name == "vocabulary" else "target_tokenizer"
                yield (
                    f"note: {self.stage.key}: the rows of the other {len(tokens) - known:,} tokens begin afresh; "
                    f"to keep the run's own vocabulary write init: {self.run} beside the `use` of the {where} too"
                )
            elif known < len(tokens) and self.stage.frame.get("freeze"):
                yield f"note: {self.stage.key}: it is frozen, so the rows of unknown tokens stay at random"

    def _compared(self, name: str) -> str:
        """Labels are added to those of the run; of other names some are known there."""
        mine, theirs = self.mine[name], {*self.theirs[name]}
        new = [one for one in mine if one not in theirs]
        if name == "labels":
            more = f", and {len(new):,} new: {_few(new)}" if new else ""
            return f"its {len(theirs):,} labels are kept{more}"
        noun = {"vocabulary": "tokens", "target_vocabulary": "target tokens"}.get(name, name)
        specials = len({*mine} & {*SPECIALS})
        return f"{len(mine) - len(new) - specials:,} of {len(mine) - specials:,} {noun} are known there"

    def _refuse_unnamed_rows(self) -> None:
        """PluginError where ids may stand for other things than there, and the stage says nothing of that."""
        if has_member(self.module, "rows"):
            return
        asked = {*wired(self.stage.cls)}
        unsure = (asked & self.mine.keys()) | ({*declared_features(self.stage)} if "sizes" in asked else set())
        for name in sorted(unsure):
            if [*self.mine[name]] != [*self.theirs.get(name, ())]:
                raise PluginError(
                    f"{self.stage.key}: {describe(self.stage)}: its {name} is not that of {self.run}, and the class "
                    f"does not say which rows of its parameters are whose; give it `rows`, such as "
                    f'rows = {{"table.weight": ("{name}",)}}, or delete init'
                )

    def _refuse_other_parts(self, old: State, fresh: State) -> None:
        for name in sorted(old.keys() ^ fresh.keys()):
            if self.rows.get(name, ()) is not None:
                where = f"in {self.run} alone" if name in old else f"not in {self.run}"
                raise self._unlike(f"the parameter {name} is {where}")

    def _moved(self, name: str, fresh: Tensor, old: State) -> Tensor:
        """A parameter of the run with its rows where our names are; fresh rows for names that it has not."""
        axes = self.rows.get(name, ())
        if axes is None:
            return fresh
        known = old[name]
        named = {axis: what for axis, what in enumerate(axes) if what}
        self._check_shapes(name, fresh, known, named)
        places = []
        for axis, what in named.items():
            there = {one: i for i, one in enumerate(self.theirs[what])}
            pairs = [(i, there[one]) for i, one in enumerate(self.mine[what]) if one in there]
            known = known.index_select(axis, torch.tensor([j for _, j in pairs], dtype=torch.int64))
            places.append((axis, torch.tensor([i for i, _ in pairs], dtype=torch.int64)))
        return _put(fresh, known, places)

    def _check_shapes(self, name: str, fresh: Tensor, known: Tensor, named: Mapping[int, str]) -> None:
        for axis, what in named.items():
            if fresh.dim() <= axis or len(self.mine[what]) != fresh.shape[axis]:
                says = f"{self.stage.key}: {describe(self.stage)}: `rows` says that axis {axis} of {name} is by {what}"
                raise PluginError(f"{says}, of which there are {len(self.mine[what])}; its shape is {[*fresh.shape]}")
        others = [axis for axis in range(fresh.dim()) if axis not in named]
        if fresh.dim() != known.dim() or any(fresh.shape[axis] != known.shape[axis] for axis in others):
            raise self._unlike(
                f"the parameter {name} has the shape {[*known.shape]} in {self.run}, {[*fresh.shape]} here"
            )

    def _unlike(self, what: str) -> ConfigError:
        options = differing(self.stage, self.there)
        cure = f"give options their old values ({'; '.join(options)})" if options else ""
        cure = (
            cure
            or f"its options are the same, so a stage before it is of another width than in {self.run}: change that"
        )
        return ConfigError([self.stage.problem(f"{describe(self.stage)}: {what}; {cure}, or delete init")])


def _put(into: Tensor, rows: Tensor, places: Sequence[tuple[int, Tensor]]) -> Tensor:
    """The tensor with rows at these places of some of its axes; with none, the rows themselves."""
    if not places:
        return rows
    (axis, index), *rest = places
    return into.index_copy(axis, index, _put(into.index_select(axis, index), rows, rest))


def _tokenizers(learned: Learned, config: Config) -> Iterator[str]:
    """A line for each tokenizer that is a run's own."""
    targets = [head.frame.get("target_tokenizer") for head in config.head]
    texts = {one.tokenizer.key: name for name, one in by_source(config.inputs).items() if one.tokenizer}
    for chosen in (*config.tokenizers, *(one for one in targets if isinstance(one, Component))):
        if folder := chosen.frame.get("init"):
            unknown = _unknown(learned, texts[chosen.key]) if chosen.key in texts else ""
            yield f"{chosen.key}: is that of {told(folder)}{unknown}"
            for change in differing(chosen, counterpart(chosen, folder)):
                yield f"note: {chosen.key}: {change}, which changes nothing: the tokenizer is the run's"


def _unknown(learned: Learned, source: str) -> str:
    counts = learned.counts[source]
    share = counts[SPECIALS.index(UNK)] / max(1, sum(counts))
    tokens = len(learned.vocabularies[source])
    return f", of {tokens:,} tokens; {100 * share:.1f} % of those of the new texts are unknown to it"


def _names(learned: Learned, task: Task | None, source: str) -> Names:
    own = sources_of(learned.featurizer).get(source)
    features = {name: feature.names for name, feature in own.features.items()} if own else {}
    of_task = {"labels": task.labels, "target_vocabulary": task.target_vocabulary or ()} if task else {}
    vocabulary = learned.vocabularies.get(source, ())
    return {"vocabulary": vocabulary, "labels": (), "target_vocabulary": (), **of_task, **features}


def _sole(learned: Learned) -> Task | None:
    """The task that stages before the head may know of: of several heads none."""
    return learned.tasks[0] if len(learned.tasks) == 1 else None


def _weights(folder: Path) -> State:
    return checkpoint.load_best(folder / CHECKPOINTS)


def _of_stage(weights: State, kind: str, there: Stage) -> State:
    if not there.parts:
        return _of_one(weights, kind, there.number)
    each = {part: _of_one(weights, *one) for part, one in there.parts.items()}
    return {f"{part}.{name}": tensor for part, state in each.items() for name, tensor in state.items()}


def _of_one(weights: State, kind: str, number: int) -> State:
    before = f"{'heads' if kind == 'head' else kind}.{number}."
    return {name.removeprefix(before): tensor for name, tensor in weights.items() if name.startswith(before)}


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
