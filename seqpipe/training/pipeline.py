"""The stages of one YAML as one PyTorch module: embeddings, encoders and heads, wired by names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seqpipe.answers.generation import PAST, PRESENT
from seqpipe.answers.multi_head import part_of
from seqpipe.config.checks.attention import attended
from seqpipe.config.component import Input, by_source
from seqpipe.config.contract import (
    has_member,
    is_language_model_head,
    member,
    read_by_heads,
    run_order,
    state_source,
)
from seqpipe.config.loader import Component, Config
from seqpipe.config.names import SOURCE_STATE
from seqpipe.config.schema import MOST_TOKENS
from seqpipe.features.sources import mask_of, sources_of
from seqpipe.nn.incremental import HEAD, IncrementalStages, cache_entries, read_piece, streaming_entries
from seqpipe.nn.multi_source_attention import join_sources, summary
from seqpipe.runtime.cache_entries import CacheEntry
from seqpipe.training.artifacts import Artifacts, Task
from seqpipe.training.head_stage import HeadStage
from seqpipe.training.stages import Names, Stage, build_stage, call_stage, stage_error, trace_source, width_of


class Pipeline(nn.Module):
    """The stages of one YAML. Each method of a stage gets what its parameters name."""

    def __init__(self, config: Config, artifacts: Artifacts):
        super().__init__()
        self.artifacts = artifacts
        task_names = _names_of_task(artifacts.tasks[0]) if len(artifacts.tasks) == 1 else {}
        self.embedding, self.encoder = nn.ModuleList(), nn.ModuleList()  # of all sources, one after the other
        self.sources: dict[str, list[Stage]] = {}  # in the order in which they run
        self.state_sources: dict[str, str] = {}  # of a source whose encoders start from another's state: that source
        inputs, read = by_source(config.inputs), read_by_heads(config.inputs)
        wired_into: dict[str, Names] = {}
        for name, source in by_source(run_order(config.inputs)).items():
            wired = _names_of_source(artifacts, name) | task_names
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
        self.joins_sources = len(read) > 1 and any(task.kind.joins_sources for task in artifacts.tasks)
        widths = tuple(wired_into[name]["dim"] for name in self.read)
        wired = {"sources": widths} | (wired_into[self.read[0]] if len(read) == 1 else {"dim": sum(widths)})
        heads = list(zip(artifacts.tasks, config.head, strict=True))
        self.heads = nn.ModuleList(build_stage(head, wired | _names_of_task(task)) for task, head in heads)
        modules: list[Any] = list(self.heads)
        self.head_stages = [
            HeadStage(task.name, head, module, task.kind) for (task, head), module in zip(heads, modules, strict=True)
        ]
        self.outputs, self.streams = artifacts.kind.outputs, config.export.streaming
        self.attended = attended(config.inputs, config.head)
        self.stages = [stage for name in inputs for stage in self.sources[name]]
        self.stages += zip(config.head, self.heads, strict=True)
        for stage, module in self.stages:
            if stage.common_keys.get("freeze"):
                module.requires_grad_(False)

    def _build_source(self, source: Input, wired: Names) -> list[Stage]:
        """The stages of one source; `wired` gets the width of what they return."""
        embeddings = [build_stage(stage, wired) for stage in source.embedding]
        wired["dim"] = sum(map(width_of, source.embedding, embeddings))
        encoders = []
        for stage in source.encoder:
            encoders.append(build_stage(stage, wired))
            wired["dim"] = width_of(stage, encoders[-1])
        return list(zip(source.stages, (*embeddings, *encoders), strict=True))

    def forward(self, names: Names) -> Names:
        """Return everything that a head may ask for: the features (B, T, …), x, and what else the stages returned.

        `sources` is a list with these names for each source that heads read. Of several they are there alone, or with
        those of the first as `join_sources` has them, where a head asks for that.
        """
        names = dict(names)
        for _ in self.trace(names):
            pass
        return names | self._incremental(names)

    @property
    def is_language_model(self) -> bool:
        """Whether the head is a language model: it runs the stages before it by itself."""
        return is_language_model_head(self.stages[-1][0])

    @property
    def cache(self) -> tuple[CacheEntry, ...]:
        """The cache of a language model, or of a pipeline that answers in pieces; of others none."""
        if self.streams:
            return streaming_entries(list(self.encoder), self.head)
        return cache_entries(list(self.encoder)) if self.is_language_model else ()

    def set_stateful(self, rows: int | None) -> None:
        """Carry recurrent states across batches of so many rows (truncated BPTT), from zeros; None stops."""
        encoders: Any = self.encoder
        for encoder in encoders:
            encoder.set_stateful(rows)

    @property
    def carried_states(self) -> dict[int, Tensor]:
        """The carried states, of each encoder that has any, by its place."""
        states = ((place, member(encoder, "carried_state")) for place, encoder in enumerate(self.encoder))
        return {place: state for place, state in states if isinstance(state, Tensor)}

    @carried_states.setter
    def carried_states(self, states: Mapping[int, Tensor]) -> None:
        encoders: Any = self.encoder
        for place, state in states.items():
            encoders[place].carried_state = state

    def _incremental(self, names: Names) -> Names:
        """The stages as a language-model head asks for them; nothing for others."""
        if not self.is_language_model:
            return {}
        return {"incremental": IncrementalStages(list(self.embedding), list(self.encoder), names, self.head.adds_bos)}

    @property
    def head(self) -> Any:
        """The only head, or the first of several."""
        return self.heads[0]

    def trace(self, names: Names) -> Iterator[tuple[Component, Names]]:
        """Run the stages before the head; yield each with what it returned, which is joined to the names on the way."""
        sources: dict[str, Names] = {}
        for source, stages in self.sources.items():
            source_names = dict(part_of(names, source)) if source else names
            if source in self.state_sources:
                source_names[SOURCE_STATE] = summary([sources[self.state_sources[source]]])
            for stage, outputs in trace_source(stages, source_names):
                yield stage, outputs
                names |= {f"{source}.{name}": value for name, value in outputs.items()} if source else {}
            sources[source] = source_names
        names["sources"] = [
            {name: value for name, value in sources[source].items() if name != "sources"} for source in self.read
        ]
        if self.joins_sources:
            names |= join_sources(names["sources"])
        elif len(self.read) == 1:
            names |= names["sources"][0]

    def mask_at(self, stage: Component) -> str:
        """The name of the mask of a stage's source among the names that `trace` joins."""
        source = self.source_of[stage.key]
        return mask_of(f"{source}.x" if source else "x")

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The heads' losses of a batch of features and targets, each times its weight, summed."""
        names = self(self.corrupt(batch))
        losses = [head.loss(names) * head.component.common_keys.get("weight", 1.0) for head in self.head_stages]
        total: Tensor = sum(losses[1:], losses[0])
        return total

    def corrupt(self, batch: Mapping[str, Tensor]) -> Names:
        """The batch as the first stage gets it in training: unchanged, or with the inputs that the head corrupts."""
        return self.head_stages[-1].corrupt(batch)

    def decide(
        self, features: Mapping[str, Tensor], options: Mapping[str, Any], explain: bool = False
    ) -> dict[str, Tensor]:
        """The heads' decisions; options that are left out have the defaults of their signatures.

        With `explain` also the attention weights of every stage, as `explain.<key>.<name>`, each where it is computed.
        With `past.…` among the features, they are the next piece of each text, and the decision holds `present.…`.
        """
        if self.streams and any(name.startswith(PAST) for name in features):
            return self._decide_piece(features, options)
        names: Names = dict(features)
        decision: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
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

    def _decide_piece(self, features: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
        """The decision about the next tokens of each text, and the cache."""
        head = self.head_stages[0]
        piece = read_piece(list(self.embedding), list(self.encoder), features)
        names = {**features, "x": piece.x, "mask": piece.mask, "state": piece.state}
        decision = dict(call_stage(head.component, head.module.decide_piece, names, **options))
        state = decision.pop("state")[:, None]
        return {**decision, **piece.cache, PRESENT + HEAD: state}

    def _weights(self, stage: Component, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The attention weights among what a stage returned, by their names in the graph."""
        for name in self.attended[stage.key]:
            if name not in outputs:
                raise stage_error(stage, f"it returned no {name!r}, which its `explains` states")
        return {attention.output: outputs[name].float() for name, attention in self.attended[stage.key].items()}

    def messages(self) -> Iterator[str]:
        """The messages of the stages before training."""
        for stage, module in self.stages:
            messages = member(module, "messages")
            yield from (f"{stage.key}: {message}" for message in (messages() if messages else ()))

    @property
    def long(self) -> list[int]:
        """Lengths of text at which a stage does what it leaves with shorter ones: its `example_length`."""
        lengths: list[Any] = [member(module, "example_length") for _, module in self.stages]
        return [length for length in lengths if length is not None]

    @property
    def limits(self) -> dict[str, int]:
        """The most tokens of one text, and of the first of a pair where a stage reads that as a whole."""
        max_lengths: list[Any] = [member(module, "max_length") for _, module in self.stages]
        context = [most for most in max_lengths if most is not None]
        if context and self.is_language_model:
            return {"tokens": min(context) - self.head.adds_bos}
        first_tokens: list[Any] = [member(module, "first_tokens") for _, module in self.stages]
        firsts = [most for most in first_tokens if most is not None] if self.artifacts.featurizer.pairs else []
        max_tokens: list[Any] = [member(module, "max_tokens") for _, module in self.stages]
        tokens = min([MOST_TOKENS, *(most for most in max_tokens if most is not None)])
        return {"tokens": tokens} | ({"first_tokens": min(firsts)} if firsts else {})

    @property
    def refuses_long_texts(self) -> bool:
        """Whether a stage cannot read a text of any length; a language model reads texts in pieces."""
        return not self.is_language_model and self.limits != {"tokens": MOST_TOKENS}

    def score(self, features: Mapping[str, Tensor], decision: Mapping[str, Tensor]) -> Tensor:
        """The first head's own score of one of its decisions, (B,)."""
        head = self.head_stages[0]
        return head.call(head.module.score, {**self(dict(features)), **decision})

    def gap(
        self, features: Mapping[str, Tensor], decision: Mapping[str, Tensor], alternative: Mapping[str, Tensor]
    ) -> Tensor:
        """How far, (B,), the model is from taking one decision for another: what distinguishes a tie from an error.

        Of each head that decided differently, its margin where it has one, else how its scores of the two differ
        (`seqpipe.training.ties`). The greatest of all heads'; infinite where a head has neither.
        """
        names = self(dict(features))
        return torch.stack([head.gap(names, decision, alternative) for head in self.head_stages]).amax(0)


def _names_of_source(artifacts: Artifacts, source: str) -> Names:
    """What is wired into the stages of a source; a source of numbers has no vocabulary."""
    features = sources_of(artifacts.featurizer)[source].features
    names: Names = {"sizes": {name: feature.size for name, feature in features.items()}}
    if (vocabulary := artifacts.vocabularies.get(source)) is not None:
        names["vocabulary"] = vocabulary
    return names


def _names_of_task(task: Task) -> Names:
    """What is wired into the head that has this task."""
    return {"labels": task.kind.wired_labels(task.labels), "target_vocabulary": task.target_vocabulary}
