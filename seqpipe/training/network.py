"""Pipeline as one PyTorch module: its stages, tied weights and heads, its losses and decisions."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqpipe.answers.registry import part_of
from seqpipe.answers.task import HeadTask
from seqpipe.answers.text import PAST, PRESENT
from seqpipe.answers.types import Choice
from seqpipe.config.checks import attended, explains
from seqpipe.config.contract import (
    Input,
    build_component,
    by_source,
    declared_corrupted_inputs,
    describe,
    expected_outputs,
    has_member,
    invalidated_names,
    is_language_model_head,
    member,
    read_by_heads,
    run_order,
    state_source,
)
from seqpipe.config.loader import Component, Config
from seqpipe.config.members import SOURCE_STATE
from seqpipe.config.schema import MOST_TOKENS
from seqpipe.config.signature import MAY_LACK, call
from seqpipe.errors import ConfigError, PluginError, SeqpipeError, UsageError, is_failed_allocation
from seqpipe.features.sources import mask_of, sources_of
from seqpipe.nn.attention import attention_weights
from seqpipe.nn.incremental import HEAD_ENTRY, IncrementalStages, cache_entries, read_chunk, stage_entries
from seqpipe.nn.multi_source_attention import join_source_outputs, summarize_sources
from seqpipe.runtime.manifest import CacheEntry, Limits
from seqpipe.training.artifacts import Artifacts, FittedTask
from seqpipe.training.datasets import SOFT_TARGETS

# The stages of a source: construction, calls with the names that they ask for, and reports of their errors.

Names = dict[str, Any]
Total = Callable[[str, Tensor], Tensor]  # the sum of a loss's items over the batches of a step and all processes
Stage = tuple[Component, nn.Module]


def build_stage(component: Component, wired: Names) -> nn.Module:
    """Build the module of a component from the wired values of its constructor's positional parameters."""
    parameters = [p for p in inspect.signature(component.cls).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    values = [wired.get(p.name, p.default) if p.name in MAY_LACK else wired[p.name] for p in parameters]
    module = build_component(component, *values)
    if not isinstance(module, nn.Module):
        raise stage_error(component, "it is not a torch.nn.Module")
    return module


def width_of(component: Component, module: nn.Module) -> int:
    """Return the declared width of the x of an embedding or encoder."""
    dim = member(module, "dim")
    if not isinstance(dim, int):
        raise stage_error(component, "it must set its width as `self.dim`, an int")
    return dim


def trace_source(stages: Sequence[Stage], names: Names) -> Iterator[tuple[Component, Names]]:
    """Run the stages of one source; yield each with its outputs, which are added to the names."""
    embedded: list[Tensor] = []
    count = sum(component.kind == "embedding" for component, _ in stages)
    for component, module in stages:
        returned = call_stage(component, module.forward, names)
        outputs: Names = returned if isinstance(returned, dict) else {"x": returned}
        for name in expected_outputs(component.cls, names):
            if not isinstance(outputs.get(name), Tensor):
                raise stage_error(component, f"`forward` returned no tensor {name!r}, which its `returns` declares")
        if "x" in outputs and (outputs["x"].dim() != 3 or outputs["x"].shape[2] != module.dim):
            shape = tuple(outputs["x"].shape)
            raise stage_error(component, f"`forward` returned x of shape {shape}, not (B, T, {module.dim}) as declared")
        yield component, outputs
        if component.kind == "embedding":
            embedded.append(outputs["x"])
            x = torch.cat(embedded, -1) if len(embedded) == count > 1 else outputs["x"]
            names |= {**{name: outputs[name] for name in expected_outputs(component.cls, names)}, "x": x}
        else:
            for name in invalidated_names(outputs):
                names.pop(name, None)
            names |= outputs


def call_stage(component: Component, method: Callable[..., Any], names: Names, **options: Any) -> Any:
    """Call a method of a stage with the names that its parameters ask for."""
    with errors_of(component, f"`{method.__name__}`"):
        return call(method, names, **options)


@contextlib.contextmanager
def errors_of(component: Component, what: str) -> Iterator[None]:
    """Report any exception of a component as an error of the component: the boundary to plugin code."""
    try:
        yield
    except ConfigError:
        raise
    except UsageError as error:  # its options do not fit its inputs
        raise ConfigError([component.problem(f"{describe(component)}: {error}")]) from error
    except SeqpipeError:
        raise
    except Exception as error:  # a plugin may raise any exception
        if is_out_of_memory(error):
            raise MemoryError(f"{component.key}: {describe(component)}") from error
        message = f"{what} raised {type(error).__name__}: {error} (--debug shows where)"
        raise stage_error(component, message) from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed, on the CPU or on a GPU."""
    return is_failed_allocation(error) or isinstance(error, torch.OutOfMemoryError)


def stage_error(component: Component, message: str) -> PluginError:
    return PluginError(f"{component.key}: {describe(component)}: {message}")


# The margin of a model between two decisions about the same texts.

Decision = Mapping[str, Tensor]
Score = Callable[[Decision], Tensor]  # a head's log-probability (B,) of the first answer of a decision


def decision_names(decision: Decision) -> list[str]:
    """Return the names of the outputs that contain the decision."""
    return [name for name in decision if not (decision[name].is_floating_point() or name.startswith(PRESENT))]


def same_rows(first: Decision, second: Decision) -> Tensor:
    """Return the rows, (B,) boolean, whose decisions are equal in all outputs."""
    every = torch.ones(len(next(iter(first.values()))), dtype=torch.bool)
    return torch.stack([every, *(_same(first[name], second[name]) for name in decision_names(first))]).all(0)


def score_gap(choices: Sequence[Choice], is_stepwise: bool, score: Score, first: Decision, second: Decision) -> Tensor:
    """Return the difference of the scores of two decisions, (B,), at the first rank where the decisions differ.

    For answers that are decided step by step it is the difference at the first choice that differs, if that is less:
    later choices depend on it. Infinite if an output without a score differs.

    `choices` are the outputs that the head's answer kind decides together; both decisions are about the same texts.
    """
    gaps = torch.zeros(len(next(iter(first.values()))))
    scored: set[str] = set()
    for names, mine, theirs in _alternatives(choices, first, second):
        differ = ~same_rows(mine, theirs)
        scored |= names
        if not differ.any():
            continue
        gap = (score(mine) - score(theirs)).abs()
        if is_stepwise:
            gap = torch.minimum(gap, _first_choice_gap(score, mine, theirs))
        gaps = torch.where(differ, torch.maximum(gaps, gap), gaps)
    for name in {*decision_names(first)} - scored:
        gaps = torch.where(_same(first[name], second[name]), gaps, math.inf)
    return gaps


def _alternatives(
    choices: Sequence[Choice], first: Decision, second: Decision
) -> Iterator[tuple[set[str], Decision, Decision]]:
    """Yield output names and the two inputs of `score`: for ranked answers, those of the first rank that differs."""
    for choice in choices:
        names = choice.outputs
        if not {*names} <= first.keys():
            continue
        if not choice.ranked:
            yield {*names}, {name: first[name] for name in names}, {name: second[name] for name in names}
            continue
        # After the first rank that differs all may differ: an answer that moves down moves the others up.
        differ = torch.stack([(first[name] != second[name])[..., None].flatten(2).any(2) for name in names])
        rank = differ.any(0).long().argmax(1)  # (B,)
        rows = torch.arange(len(rank))
        mine, theirs = ({name: part[name][rows, rank][:, None] for name in names} for part in (first, second))
        if choice.scored_as:
            mine, theirs = ({choice.scored_as: part[names[0]][:, 0]} for part in (mine, theirs))
        yield {*names}, mine, theirs


def _first_choice_gap(score: Score, mine: Decision, theirs: Decision) -> Tensor:
    """Return the difference of the scores of two sequences (B, 1, N), cut after the first difference."""
    ((name, first),) = mine.items()
    second = theirs[name]
    differ = (first != second)[:, 0]
    place = torch.where(differ.any(1), differ.long().argmax(1), -1)
    gaps = torch.full((len(first),), math.inf)
    for cut in [int(at) for at in place.unique() if at >= 0]:
        gap = (score({name: first[:, :, : cut + 1]}) - score({name: second[:, :, : cut + 1]})).abs()
        gaps = torch.where(place == cut, gap, gaps)
    return gaps


def _same(first: Tensor, second: Tensor) -> Tensor:  # (B, …) -> (B,)
    return (first == second).flatten(1).all(1) if first.dim() > 1 else first == second


@dataclass(frozen=True)
class HeadStage:
    """A head among several."""

    name: str  # empty for a single head
    component: Component
    module: Any  # built from the component
    task: HeadTask  # its answers and targets

    @property
    def prefix(self) -> str:
        """Prefix of the names of its targets, options and outputs."""
        return f"{self.name}." if self.name else ""

    def part(self, names: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the tensors of this head, by their names without the prefix."""
        return part_of(names, self.name) if self.name else names

    def call(self, method: Callable[..., Any], names: Names, **options: Any) -> Any:
        """Call a method of the head with the tensors that its parameters name, without the prefix."""
        return call_stage(self.component, method, {**names, **self.part(names)}, **options)

    def loss(self, names: Names, total: Total | None = None, kind: str = "") -> Tensor:
        """Return the loss of a batch; with `total` the part of the loss of a step that is due to these rows.

        `kind` distinguishes the loss of a teacher's texts, which may be about more records and have other lengths.
        """
        loss = self._call_in_fp32(self.module.loss, names)
        return loss if total is None else _part(loss, self.count(names), total, kind + self.name)

    def count(self, names: Names) -> Tensor:
        """Return the number of items of which the loss is the mean."""
        if has_member(self.module, "loss_count"):
            return self.call(self.module.loss_count, names)
        mask = names["sources"][0]["mask"]
        return torch.full((), len(mask), device=mask.device)  # `torch.tensor` waits for a GPU

    def _call_in_fp32(self, method: Callable[..., Any], names: Names, **options: Any) -> Tensor:
        """Return a loss, in fp32 even under autocast: most heads are small and their sums are long.

        A head that decides step by step takes most of the time, so it runs under autocast.
        """
        device = names["sources"][0]["mask"].device.type
        with attention_weights(needed=False):
            if not torch.is_autocast_enabled(device) or self.task.is_stepwise:
                return _to_fp32(self.call(method, names, **options))
        with torch.autocast(device, enabled=False), attention_weights(needed=False):
            return self.call(method, {name: _to_fp32(value) for name, value in names.items()}, **options)

    def distillation_loss(
        self, names: Names, soft_targets: Mapping[str, Tensor], temperature: float, total: Total | None = None
    ) -> Tensor:
        """Return the loss of a teacher's answers: T^2 times the divergence from its distribution, or that of its text.

        The divergence is the mean over texts or tokens of KL(p || q) = sum p (log p - log q) at the temperature T
        (Hinton et al. 2015); a text is a target like that of the record (Kim and Rush 2016).
        """
        if "p" not in soft_targets:
            names = {**names, **{self.prefix + name: target for name, target in soft_targets.items()}}
            return self.loss(names, total, SOFT_TARGETS)
        p = soft_targets["p"]  # (N, …, L)
        log_q = self._call_in_fp32(self.module.distribution, names, temperature=temperature)
        loss = temperature**2 * (torch.xlogy(p, p) - p * log_q).sum() / len(p)
        count = torch.full((), len(p), device=p.device)
        return loss if total is None else _part(loss, count, total, SOFT_TARGETS + self.name)

    def gap(self, names: Names, decision: Mapping[str, Tensor], alternative: Mapping[str, Tensor]) -> Tensor:
        """Return the head's margin (B,) between two decisions: see `Pipeline.gaps`."""
        decision, alternative = self.part(decision), self.part(alternative)
        if has_member(self.module, "margin"):
            others = {f"other_{name}": alternative[name] for name in decision_names(alternative)}
            outputs = {name: decision[name] for name in decision_names(decision)}
            gap = call_stage(self.component, self.module.margin, names | outputs | others)
        elif has_member(self.module, "score"):

            def score(scored: Decision) -> Any:
                return call_stage(self.component, self.module.score, {**names, **scored})

            gap = score_gap(self.task.choices, self.task.is_stepwise, score, decision, alternative)
        else:
            gap = torch.full((len(names["sources"][0]["mask"]),), math.inf)
        return torch.where(same_rows(decision, alternative), 0.0, gap)


def _part(loss: Tensor, count: Tensor, total: Total, name: str) -> Tensor:
    """Return the part of the mean over all items of a step that is due to these, whose mean is `loss`; 0 for none."""
    return torch.where(count > 0, loss, 0.0) * (count / total(name, count))


def _to_fp32(value: Any) -> Any:
    if isinstance(value, list):
        return [{name: _to_fp32(part) for name, part in names.items()} for names in value]
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


class Network(nn.Module):
    """The stages of one YAML. Each method of a stage gets the values that its parameters name."""

    def __init__(self, config: Config, artifacts: Artifacts):
        super().__init__()
        self.artifacts, self.teacher = artifacts, config.train.teacher
        task_names = _names_of_task(artifacts.tasks[0]) if len(artifacts.tasks) == 1 else {}
        self.embedding, self.encoder = nn.ModuleList(), nn.ModuleList()  # of all sources, one after the other
        self.sources: dict[str, list[Stage]] = {}  # in the order in which they run
        self.state_sources: dict[str, str] = {}  # the source of each initial state
        inputs, read = by_source(config.inputs), read_by_heads(config.inputs)
        wired_into: dict[str, Names] = {}
        for name, source in by_source(run_order(config.inputs)).items():
            features = sources_of(artifacts.featurizer)[name].features
            wired: Names = {"sizes": {}}
            for feature_name, feature in features.items():
                wired["sizes"] |= feature.sizes(feature_name)
            # A source of numbers has no vocabulary.
            if (vocabulary := artifacts.vocabularies.get(name)) is not None:
                wired["vocabulary"] = vocabulary
            wired |= task_names
            if before := state_source(source):
                self.state_sources[name] = before
                wired["sizes"] = {**wired["sizes"], SOURCE_STATE: wired_into[before]["dim"]}
            self.sources[name] = self._build_source(source, wired)
            wired_into[name] = wired
        for name in inputs:
            for stage, module in self.sources[name]:
                (self.embedding if stage.kind == "embedding" else self.encoder).append(module)
        self.read = [name for name, source in inputs.items() if source in read]
        self.source_of = {stage.key: name for name, stages in self.sources.items() for stage, _ in stages}
        self.joins_sources = len(read) > 1 and any(task.head_task.joins_sources for task in artifacts.tasks)
        widths = tuple(wired_into[name]["dim"] for name in self.read)
        wired = {"sources": widths} | (wired_into[self.read[0]] if len(read) == 1 else {"dim": sum(widths)})
        self.head_stages = [
            HeadStage(task.name, head, build_stage(head, wired | _names_of_task(task)), task.head_task)
            for task, head in zip(artifacts.tasks, config.head, strict=True)
        ]
        self.heads = nn.ModuleList(head.module for head in self.head_stages)
        self.outputs, self.streams = artifacts.kind.outputs, config.export.streaming
        self.attended = attended(config.inputs, config.head)
        self.stages = [stage for name in inputs for stage in self.sources[name]]
        self.stages += zip(config.head, self.heads, strict=True)
        for stage, module in self.stages:
            if stage.common_keys.get("freeze"):
                module.requires_grad_(False)
            if not any(True for _ in module.parameters()):
                for key in (key for key in ("freeze", "lr") if stage.common_keys.get(key)):
                    raise ConfigError([stage.problem(f"{describe(stage)}: {key}: it has no weights; delete {key}")])
        weights = {name for stage, _ in self.stages for name in explains(stage)}
        methods = [module.forward for _, module in self.stages[: -len(self.head_stages)]]
        methods += [method for head in self.head_stages for method in (head.module.loss, head.module.decide)]
        # Whether a stage computes with the attention weights of another one.
        self._reads_weights = any(weights & inspect.signature(method).parameters.keys() for method in methods)

    def _build_source(self, source: Input, wired: Names) -> list[Stage]:
        """Build the stages of one source; their width is added to `wired`."""
        embeddings = [build_stage(stage, wired) for stage in source.embedding]
        wired["dim"] = sum(map(width_of, source.embedding, embeddings))
        encoders = []
        for stage in source.encoder:
            encoders.append(build_stage(stage, wired))
            wired["dim"] = width_of(stage, encoders[-1])
        return list(zip(source.stages, (*embeddings, *encoders), strict=True))

    def forward(self, names: Names) -> Names:
        """Return the inputs of the heads: the features (B, T, …), x, and the other outputs of the stages.

        `sources` is a list with these names for each source that heads read. With several sources there is only this
        list, or also the names of the first as joined by `join_sources`, if a head asks for them.
        """
        names = dict(names)
        with attention_weights(self._reads_weights):
            for _ in self.trace(names):
                pass
        return names | self._incremental(names)

    @property
    def is_language_model(self) -> bool:
        """Return whether the head is a language model, which runs the stages before it by itself."""
        return is_language_model_head(self.stages[-1][0])

    @property
    def cache(self) -> tuple[CacheEntry, ...]:
        """Cache entries of a language model or a streaming pipeline; empty for others."""
        if self.streams:
            state = CacheEntry.of(PAST + HEAD_ENTRY, PRESENT + HEAD_ENTRY, tuple(self.head.state_shape), grows=False)
            return *stage_entries(list(self.encoder)), state
        return cache_entries(list(self.encoder)) if self.is_language_model else ()

    def set_stateful(self, rows: int | None) -> None:
        """Carry recurrent states across batches of this many rows (truncated BPTT), from zeros; None stops."""
        encoders: Any = self.encoder
        for encoder in encoders:
            encoder.set_stateful(rows)

    @property
    def carried_states(self) -> dict[int, Tensor]:
        """Carried states of each encoder that has any, by its position."""
        states = ((place, member(encoder, "carried_state")) for place, encoder in enumerate(self.encoder))
        return {place: state for place, state in states if isinstance(state, Tensor)}

    @carried_states.setter
    def carried_states(self, states: Mapping[int, Tensor]) -> None:
        encoders: Any = self.encoder
        for place, state in states.items():
            encoders[place].carried_state = state

    def _incremental(self, names: Names) -> Names:
        """Return the incremental stages for a language-model head; empty for other heads."""
        if not self.is_language_model:
            return {}
        return {"incremental": IncrementalStages(list(self.embedding), list(self.encoder), names, self.head.adds_bos)}

    @property
    def head(self) -> Any:
        """Only head, or the first of several."""
        return self.heads[0]

    def trace(self, names: Names) -> Iterator[tuple[Component, Names]]:
        """Run the stages before the head; yield each with its outputs, which are added to the names."""
        sources: dict[str, Names] = {}
        for source, stages in self.sources.items():
            source_names = dict(part_of(names, source)) if source else names
            if source in self.state_sources:
                source_names[SOURCE_STATE] = summarize_sources([sources[self.state_sources[source]]])
            for stage, outputs in trace_source(stages, source_names):
                yield stage, outputs
                names |= {f"{source}.{name}": value for name, value in outputs.items()} if source else {}
            sources[source] = source_names
        names["sources"] = [
            {name: value for name, value in sources[source].items() if name != "sources"} for source in self.read
        ]
        if self.joins_sources:
            names |= join_source_outputs(names["sources"])
        elif len(self.read) == 1:
            names |= names["sources"][0]

    def mask_at(self, stage: Component) -> str:
        """Return the name of the mask of a stage's source among the names of `trace`."""
        source = self.source_of[stage.key]
        return mask_of(f"{source}.x" if source else "x")

    def loss(self, batch: Mapping[str, Tensor], total: Total | None = None) -> Tensor:
        """Return the weighted sum of the heads' losses of a batch of features, targets and a teacher's answers.

        Where a step has several batches, or several processes have rows of a batch, `total` sums a number over them;
        its name is that of the loss. The losses are then parts, whose sum is the loss of the whole step.
        """
        names, losses = self(self.corrupt(batch)), list[Tensor]()
        for head in self.head_stages:
            targets = head.part(batch)
            soft_targets = {
                name.removeprefix(SOFT_TARGETS): part for name, part in targets.items() if name.startswith(SOFT_TARGETS)
            }
            if self.teacher is None or not soft_targets:
                loss = head.loss(names, total)
            else:
                share = self.teacher.weight
                loss = share * head.distillation_loss(names, soft_targets, self.teacher.temperature, total)
                if share < 1 and not head.task.targets.keys().isdisjoint(targets):
                    loss = loss + (1 - share) * head.loss(names, total)
            losses.append(loss * head.component.common_keys.get("weight", 1.0))
        return sum(losses[1:], losses[0])

    def corrupt(self, batch: Mapping[str, Tensor]) -> Names:
        """Return the batch as input of training: unchanged, or with the head's corrupted inputs."""
        component, module = self.head_stages[-1].component, self.head_stages[-1].module
        expected = declared_corrupted_inputs(component)
        if not expected:
            return dict(batch)
        corrupted = call_stage(component, module.corrupt_batch, dict(batch))
        if lacking := [name for name in expected if not isinstance(corrupted.get(name), Tensor)]:
            message = f"`corrupt_batch` returned no tensor {lacking[0]!r}, which its `corrupted_inputs` declares"
            raise stage_error(component, message)
        return {**batch, **corrupted}

    def decide(
        self, features: Mapping[str, Tensor], options: Mapping[str, Any], explain: bool = False
    ) -> dict[str, Tensor]:
        """Return the heads' decisions; missing options have the defaults of their signatures.

        With `explain` also the attention weights of every stage, as `explain.<key>.<name>`.
        With `past.…`, the features are the next chunk of each text, and the decision includes `present.…`.
        """
        if self.streams and any(name.startswith(PAST) for name in features):
            head = self.head_stages[0]
            chunk = read_chunk(list(self.embedding), list(self.encoder), features)
            names = {**features, "x": chunk.x, "mask": chunk.mask, "state": chunk.state}
            decision = dict(call_stage(head.component, head.module.decide_chunk, names, **options))
            state = decision.pop("state")[:, None]
            return {**decision, **chunk.cache, PRESENT + HEAD_ENTRY: state}
        names = dict(features)
        decision = {}
        weights: dict[str, Tensor] = {}
        with attention_weights(explain or self._reads_weights):
            for stage, outputs in self.trace(names) if explain or not self.is_language_model else ():
                weights |= self._weights(stage, outputs) if explain else {}
        names |= self._incremental(names)
        for head in self.head_stages:
            stage, module = head.component, head.module
            outputs = call_stage(stage, module.decide, names, **head.part(options))
            if explain:
                explained = head.call(module.explain, names | outputs) if has_member(module, "explain") else {}
                weights |= self._weights(stage, outputs | explained)
            maps = self.attended[stage.key]
            decision |= {head.prefix + name: tensor for name, tensor in outputs.items() if name not in maps}
            expected = [name for name in self.outputs if name.startswith(head.prefix)]
            if lacking := [name for name in expected if name not in decision]:
                name = lacking[0].removeprefix(head.prefix)
                raise stage_error(stage, f"`decide` returned no {name!r}, which its answer kind needs")
        return decision | weights

    def _weights(self, stage: Component, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the attention weights among a stage's outputs, by their names in the graph."""
        for name in self.attended[stage.key]:
            if name not in outputs:
                raise stage_error(stage, f"it returned no {name!r}, which its `explains` declares")
        dtype = torch.get_default_dtype()
        return {attention.output: outputs[name].to(dtype) for name, attention in self.attended[stage.key].items()}

    def messages(self) -> Iterator[str]:
        """Yield the messages of the stages before training."""
        for stage, module in self.stages:
            messages = member(module, "messages")
            yield from (f"{stage.key}: {message}" for message in (messages() if messages else ()))

    def _stated(self, name: str) -> list[int]:
        """Return the values of a member of the stages that have it."""
        values: list[Any] = [member(module, name) for _, module in self.stages]
        return [value for value in values if value is not None]

    @property
    def long(self) -> list[int]:
        """Text lengths from which a stage computes differently than for shorter texts: its `example_length`."""
        return self._stated("example_length")

    @property
    def limits(self) -> Limits:
        """Maximum number of tokens of one text, and of the first of a pair if a stage reads it as a whole."""
        if self.is_language_model and (context := self._stated("max_length")):
            return Limits(tokens=min(context) - self.head.adds_bos)
        limits: dict[str, Any] = {"tokens": min([MOST_TOKENS, *self._stated("max_tokens")])}
        if any(member(module, "cuts_texts") for _, module in self.stages):
            limits["cut"] = True
        if self.artifacts.featurizer.pairs and (first_tokens := self._stated("first_tokens")):
            limits["first_tokens"] = min(first_tokens)
        return Limits(**limits)

    @property
    def most_written(self) -> int:
        """Maximum number of tokens of a generated text: a language model has one table of positions for all tokens."""
        return self.limits.tokens if self.is_language_model else MOST_TOKENS

    @property
    def refuses_long_texts(self) -> bool:
        """Return whether a stage limits the length of texts; False for a language model, which reads windows."""
        return not self.is_language_model and self.limits != Limits(tokens=MOST_TOKENS)

    def score(self, features: Mapping[str, Tensor], decision: Mapping[str, Tensor]) -> Tensor:
        """Return the first head's score of one of its decisions, (B,)."""
        head = self.head_stages[0]
        return head.call(head.module.score, {**self(dict(features)), **decision})

    def gaps(
        self, features: Mapping[str, Tensor], decision: Mapping[str, Tensor], alternative: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the margins of each head (H, B) between two decisions, which distinguish a tie from an error.

        A head's `margin`, else the difference of its scores of the two decisions (`score_gap`); infinite if it has
        neither, and 0 where it decided equally.
        """
        names = self(dict(features))
        return torch.stack([head.gap(names, decision, alternative) for head in self.head_stages])


def _names_of_task(task: FittedTask) -> Names:
    """Return the names wired into the head that has this task."""
    return {"labels": task.head_task.wired_labels(task.labels), "target_vocabulary": task.target_vocabulary}
