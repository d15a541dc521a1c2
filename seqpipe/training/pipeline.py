"""A checked Config and what was learned in, one PyTorch module out: embedding, encoder and head, wired by names."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqpipe.answers.multi_head import part_of
from seqpipe.config.checks.attention import attended
from seqpipe.config.component import Input, build_component, by_source, describe
from seqpipe.config.contract import (
    declared_corrupted_inputs,
    declared_inactive_options,
    decode_options,
    dev_option,
    expected_outputs,
    has_member,
    head_metrics,
    invalidated_names,
    is_language_model_head,
    member,
)
from seqpipe.config.head_answers import answer_kind, metric_types
from seqpipe.config.loader import Component, Config
from seqpipe.config.schema import MOST_TOKENS
from seqpipe.config.signature import call
from seqpipe.errors import ConfigError, PluginError, SeqpipeError, UsageError
from seqpipe.features.document import Arrays
from seqpipe.features.sources import mask_of, sources_of
from seqpipe.nn.incremental import IDS, PAST, IncrementalStages
from seqpipe.runtime.predictor import Predictor
from seqpipe.training.fit import Learned, Task
from seqpipe.training.ties import decided, same_rows, score_gap

_MOST_EXP = 700.0  # exp of more is no number
Names = dict[str, Any]


class Pipeline(nn.Module):
    """The stages of one YAML. Each method of a stage is given what its parameters name."""

    def __init__(self, config: Config, learned: Learned):
        super().__init__()
        self.learned = learned
        alone = _of_task(learned.tasks[0]) if len(learned.tasks) == 1 else {}
        self.embedding, self.encoder = nn.ModuleList(), nn.ModuleList()  # of all sources, one after the other
        self.sources: dict[str, list[tuple[Component, nn.Module]]] = {}
        wired, widths = Names(), []
        for name, one in by_source(config.inputs).items():
            wired = _of_source(learned, name) | alone
            self.sources[name] = self._built(one, wired)
            widths.append(wired["dim"])
        self.source_of = {stage.key: name for name, stages in self.sources.items() for stage, _ in stages}
        wired = {"sources": tuple(widths)} | (wired if len(self.sources) == 1 else {})
        self.heads = nn.ModuleList(
            _build(stage, wired | _of_task(task)) for stage, task in zip(config.head, learned.tasks, strict=True)
        )
        self.outputs = learned.kind.outputs
        self.attended = attended(config.inputs, config.head)
        heads = zip(config.head, self.heads, strict=True)
        self.stages = [*(one for stages in self.sources.values() for one in stages), *heads]
        for stage, module in self.stages:
            if stage.frame.get("freeze"):
                module.requires_grad_(False)

    def _built(self, one: Input, wired: Names) -> list[tuple[Component, nn.Module]]:
        """The stages of one source; `wired` gets the width of what they make."""
        embeddings = [_build(stage, wired) for stage in one.embedding]
        wired["dim"] = sum(_dim(stage, made) for stage, made in zip(one.embedding, embeddings, strict=True))
        encoders = []
        for stage in one.encoder:
            encoders.append(_build(stage, wired))
            wired["dim"] = _dim(stage, encoders[-1])
        self.embedding.extend(embeddings)
        self.encoder.extend(encoders)
        return list(zip(one.stages, (*embeddings, *encoders), strict=True))

    def forward(self, names: Names) -> Names:
        """Features (B, T, …) to everything the head may ask for: the features, x, and what else the stages returned.

        `sources` is a list with these names for each source; of several sources they are there alone.
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
    def cache_shapes(self) -> dict[str, tuple[int, ...]]:
        """The caches of a language model: the shape of a slot of each, by its name."""
        encoders: list[Any] = list(self.encoder) if self.is_language_model else []
        shapes = {f"{PAST}{number}": tuple(one.cache_shape) for number, one in enumerate(encoders)}
        return {PAST + IDS: (), **shapes} if shapes else {}

    @property
    def single_slot_caches(self) -> set[str]:
        """Names of the caches with one slot for all tokens."""
        if not self.is_language_model:
            return set()
        return {f"{PAST}{n}" for n, encoder in enumerate(self.encoder) if not member(encoder, "cache_per_token")}

    def set_stateful(self, rows: int | None) -> None:
        """Carry recurrent states across batches of so many rows (truncated BPTT), from zeros; None stops."""
        encoders: Any = self.encoder
        for encoder in encoders:
            encoder.set_stateful(rows)

    @property
    def carried_states(self) -> dict[int, Tensor]:
        """The carried states, of each encoder that has any, by its place."""
        found = ((place, member(encoder, "carried_state")) for place, encoder in enumerate(self.encoder))
        return {place: state for place, state in found if isinstance(state, Tensor)}

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

    @property
    def _named_heads(self) -> Iterator[tuple[str, Component, Any]]:
        """Each head with what stands in front of its names: nothing where there is one head."""
        for task, (stage, module) in zip(self.learned.tasks, self.stages[-len(self.heads) :], strict=True):
            yield (f"{task.name}." if task.name else ""), stage, module

    def trace(self, names: Names) -> Iterator[tuple[Component, Names]]:
        """Each stage before the head, with what it makes of the names; they are joined by it on the way."""
        sources = []
        for name, stages in self.sources.items():
            own = part_of(names, name) if name else names
            for stage, made in _traced(stages, own):
                yield stage, made
                names |= {f"{name}.{key}": one for key, one in made.items()} if name else {}
            sources.append(own)
        names["sources"] = [{name: one for name, one in own.items() if name != "sources"} for own in sources]

    def mask_at(self, stage: Component) -> str:
        """What the mask of a stage's source is called among the names that `trace` joins."""
        source = self.source_of[stage.key]
        return mask_of(f"{source}.x" if source else "x")

    def not_finite(self, batch: Mapping[str, Tensor]) -> str:
        """Which stage is the first to make a NaN or an infinity of this batch, in words."""
        with torch.no_grad():
            names = self._given(batch)
            for stage, made in self.trace(names):
                real = made.get("mask", names[self.mask_at(stage)])
                if "x" in made and not torch.isfinite(made["x"][real]).all():
                    return f"{stage.key}: {describe(stage)}: `forward` returned NaN or infinity for real tokens"
            for before, stage, head in self._named_heads:
                if not torch.isfinite(self._loss(stage, head, _own(names, before))):
                    return f"{stage.key}: {describe(stage)}: `loss` returned NaN or infinity"
        return "none: looked at again, every stage is finite"

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The heads' losses of a batch of features and targets, each times its weight, summed."""
        names = self(self._given(batch))
        losses = [
            self._loss(stage, head, _own(names, before)) * stage.frame.get("weight", 1.0)
            for before, stage, head in self._named_heads
        ]
        total: Tensor = sum(losses[1:], losses[0])
        return total

    def _given(self, batch: Mapping[str, Tensor]) -> Names:
        """A batch as the first stage gets it in training: as it is, or corrupted by the head."""
        stage, names = self.stages[-1][0], declared_corrupted_inputs(self.stages[-1][0])
        if not names:
            return dict(batch)
        made = _asked(stage, self.head.corrupt_batch, dict(batch))
        if lacking := [name for name in names if not isinstance(made.get(name), Tensor)]:
            message = f"`corrupt_batch` returned no tensor {lacking[0]!r}, which its `corrupted_inputs` states"
            raise _fault(stage, message)
        return {**batch, **made}

    def _loss(self, stage: Component, head: Any, names: Names) -> Tensor:
        """A head's loss, in fp32 also under autocast: most heads are small and their sums are long.

        What goes step by step is the greater part of the work, so it is left to autocast.
        """
        device = names["sources"][0]["mask"].device.type
        if not torch.is_autocast_enabled(device) or answer_kind(stage).is_stepwise:
            loss: Tensor = _asked(stage, head.loss, names)
            return loss.float()
        with torch.autocast(device, enabled=False):
            names = {name: _in_fp32(one) for name, one in names.items()}
            whole: Tensor = _asked(stage, head.loss, names)
        return whole

    def decide(
        self, features: Mapping[str, Tensor], options: Mapping[str, Any], explain: bool = False
    ) -> dict[str, Tensor]:
        """The heads' decisions; options they do not get have the defaults of their signatures.

        With `explain` also the attention weights of every stage, as `explain.<key>.<name>`, each where it is made.
        """
        names: Names = dict(features)
        decision: dict[str, Tensor] = {}
        weights: dict[str, Tensor] = {}
        for stage, made in self.trace(names) if explain or not self.is_language_model else ():
            weights |= self._weights(stage, made) if explain else {}
        names |= self._incremental(names)
        for before, stage, head in self._named_heads:
            found = _asked(stage, head.decide, names, **(part_of(options, before[:-1]) if before else options))
            if explain:
                looked = _asked(stage, head.explain, _own(names, before) | found) if has_member(head, "explain") else {}
                weights |= self._weights(stage, found | looked)
            shown = self.attended[stage.key]
            decision |= {before + name: tensor for name, tensor in found.items() if name not in shown}
            wanted = [name for name in self.outputs if name.startswith(before)]
            if lacking := [name for name in wanted if name not in decision]:
                told = f"`decide` returned no {lacking[0].removeprefix(before)!r}, which its answer kind needs"
                raise _fault(stage, told)
        return decision | weights

    def _weights(self, stage: Component, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The attention weights among what a stage returned, as the graph calls them."""
        for name in self.attended[stage.key]:
            if name not in made:
                raise _fault(stage, f"it returned no {name!r}, which its `explains` states")
        return {one.output: made[name].float() for name, one in self.attended[stage.key].items()}

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
        given: list[Any] = [member(module, "first_tokens") for _, module in self.stages]
        firsts = [most for most in given if most is not None] if self.learned.featurizer.pairs else []
        return {"tokens": MOST_TOKENS} | ({"first_tokens": min(firsts)} if firsts else {})

    def calibrate(self, batches: Callable[[], Iterable[Mapping[str, Tensor]]]) -> None:
        """Lets every head that chooses something on dev do so, from its evidence of these batches of dev data."""
        choosing = [one for one in self._named_heads if dev_option(one[1])]
        if not choosing:
            return
        was_training, found = self.training, [defaultdict[str, list[Tensor]](list) for _ in choosing]
        self.eval()
        with torch.no_grad():
            for batch in batches():
                names = self(dict(batch))
                for (before, stage, head), columns in zip(choosing, found, strict=True):
                    for name, rows in _asked(stage, head.evidence, _own(names, before)).items():
                        columns[name].append(rows)
        for (_, stage, head), columns in zip(choosing, found, strict=True):
            with _blamed(stage, "`calibrate`"):
                head.calibrate({name: torch.cat(rows) for name, rows in columns.items()})
        self.train(was_training)

    def perplexities(self, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
        """Of each head that writes text, by its name, exp of the mean loss of a target token."""
        writing = [
            one for one in self._named_heads if answer_kind(one[1]).counts_tokens and not has_member(one[2], "measures")
        ]
        losses, tokens = ({before: 0.0 for before, *_ in writing} for _ in range(2))
        was_training = self.training
        self.eval()
        with torch.no_grad():
            for batch in batches if writing else ():
                names = self(self._given(batch))
                for before, stage, head in writing:
                    own = _own(names, before)
                    count = float(own["target_mask"].sum())
                    losses[before] += float(_asked(stage, head.loss, own)) * count
                    tokens[before] += count
        self.train(was_training)
        means = {before[:-1]: loss / max(1.0, tokens[before]) for before, loss in losses.items()}
        return {head: math.exp(min(mean, _MOST_EXP)) for head, mean in means.items()}

    def measured(self, batches: Iterable[Mapping[str, Tensor]]) -> dict[str, dict[str, float]]:
        """Of each head that has `measures`, by its name, what they are of all batches, in evaluation.

        Each is a mean; of what is called a perplexity exp of it.
        """
        measuring = [one for one in self._named_heads if has_member(one[2], "measures")]
        sums: dict[str, dict[str, Tensor]] = {before: {} for before, *_ in measuring}
        was_training = self.training
        self.eval()
        with torch.no_grad():
            for batch in batches if measuring else ():
                names = self(self._given(batch))
                for before, stage, head in measuring:
                    for name, pair in _asked(stage, head.measures, _own(names, before)).items():
                        sums[before][name] = sums[before].get(name, torch.zeros(2)) + pair.cpu()
        self.train(was_training)
        return {
            before[:-1]: {name: _mean(name, *pair.tolist()) for name, pair in found.items()}
            for before, found in sums.items()
        }

    def score(self, features: Mapping[str, Tensor], decision: Mapping[str, Tensor]) -> Tensor:
        """The first head's own score of a given decision of its, (B,)."""
        before, stage, head = next(self._named_heads)
        return _asked(stage, head.score, _own({**self(dict(features)), **decision}, before))

    def gap(self, features: Mapping[str, Tensor], one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Tensor:
        """How far, (B,), the model is from taking one decision for another: what tells a tie from an error.

        Of each head that decided differently, its margin where it has one, else how its scores of the two differ
        (`seqpipe.training.ties`). The greatest of all heads'; infinite where a head has neither.
        """
        names, gaps = self(dict(features)), []
        for before, stage, head in self._named_heads:
            mine, theirs = (part_of(some, before[:-1]) if before else some for some in (one, other))
            if has_member(head, "margin"):
                others = {f"other_{name}": theirs[name] for name in decided(theirs)}
                gap = _asked(stage, head.margin, names | {name: mine[name] for name in decided(mine)} | others)
            elif has_member(head, "score"):
                score = partial(_scored, stage, head, names)
                kind = self.learned.kind.parts[before[:-1]]
                gap = score_gap(kind.choices, kind.is_stepwise, score, mine, theirs)
            else:
                gap = torch.full((len(names["sources"][0]["mask"]),), math.inf)
            gaps.append(torch.where(same_rows(mine, theirs), 0.0, gap))
        return torch.stack(gaps).amax(0)


def _scored(stage: Component, head: Any, names: Names, decision: Mapping[str, Tensor]) -> Tensor:
    scores: Tensor = _asked(stage, head.score, {**names, **decision})
    return scores


def _traced(stages: Sequence[tuple[Component, nn.Module]], names: Names) -> Iterator[tuple[Component, Names]]:
    """As `Pipeline.trace`, the stages of one source."""
    embedded: list[Tensor] = []
    count = sum(stage.kind == "embedding" for stage, _ in stages)
    for stage, module in stages:
        made = _made(stage, module, names)
        yield stage, made
        if stage.kind == "embedding":
            embedded.append(made["x"])
            x = torch.cat(embedded, -1) if len(embedded) == count > 1 else made["x"]
            names |= {**{name: made[name] for name in expected_outputs(stage.cls, names)}, "x": x}
        else:
            for name in invalidated_names(made):
                names.pop(name, None)
            names |= made


def _mean(name: str, total: float, count: float) -> float:
    mean = total / max(1.0, count)
    return math.exp(min(mean, _MOST_EXP)) if name.endswith("perplexity") else mean


def _asked(stage: Component, method: Callable[..., Any], names: Names, **options: Any) -> Any:
    with _blamed(stage, f"`{method.__name__}`"):
        return call(method, names, **options)


def _in_fp32(one: Any) -> Any:
    if isinstance(one, list):
        return [{name: _in_fp32(part) for name, part in names.items()} for names in one]
    return one.float() if one.is_floating_point() else one


def _own(names: Names, before: str) -> Names:
    """The names with those of one head, which begin with `before`, as it calls them itself."""
    return names | part_of(names, before[:-1]) if before else names


def _of_source(learned: Learned, name: str) -> Names:
    """What is wired into the stages of a source; of rows of numbers there is no vocabulary."""
    features = sources_of(learned.featurizer)[name].features
    vocabulary = {"vocabulary": one} if (one := learned.vocabularies.get(name)) is not None else {}
    return {"sizes": {feature: one.size for feature, one in features.items()}} | vocabulary


def _of_task(task: Task) -> Names:
    """What is wired into the head that has this task."""
    return {"labels": task.kind.wired_labels(task.labels), "target_vocabulary": task.target_vocabulary}


def option_table(*heads: Component) -> dict[str, dict[str, Any]]:
    """The heads' decode options as a bundle lists them, inactive ones left out; of several heads by their names."""
    return {
        f"{head.name}.{name}" if len(heads) > 1 else name: {
            "type": option.type,
            "default": option.default,
            "minimum": option.minimum,
            "maximum": option.maximum,
        }
        for head in heads
        for name, option in decode_options(head.cls).items()
        if name not in declared_inactive_options(head)
    }


def _build(stage: Component, wired: Names) -> nn.Module:
    parameters = list(inspect.signature(stage.cls).parameters.values())
    asked = [wired[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY]
    made = build_component(stage, *asked)
    if not isinstance(made, nn.Module):
        raise _fault(stage, "it is not a torch.nn.Module")
    return made


def _dim(stage: Component, module: nn.Module) -> int:
    dim = member(module, "dim")
    if not isinstance(dim, int):
        raise _fault(stage, "it must state its width as `self.dim`, an int")
    return dim


def _made(stage: Component, module: nn.Module, names: Names) -> Names:
    """What a stage makes of the names, by name; PluginError if that is not what it stated."""
    with _blamed(stage, "`forward`"):
        returned = call(module.forward, names)
    made: Names = returned if isinstance(returned, dict) else {"x": returned}
    for name in expected_outputs(stage.cls, names):
        if not isinstance(made.get(name), Tensor):
            raise _fault(stage, f"`forward` returned no tensor {name!r}, which its `returns` states")
    if "x" in made and (made["x"].dim() != 3 or made["x"].shape[2] != module.dim):
        raise _fault(stage, f"`forward` returned x of shape {tuple(made['x'].shape)}; (B, T, {module.dim}) was stated")
    return made


@contextlib.contextmanager
def _blamed(stage: Component, what: str) -> Iterator[None]:
    """Report whatever a component raises as its own error."""
    try:
        yield
    except ConfigError:
        raise
    except UsageError as error:  # its options do not fit what it is given
        raise ConfigError([stage.problem(f"{describe(stage)}: {error}")]) from error
    except (SeqpipeError, MemoryError):
        raise
    except Exception as error:  # a plugin may raise anything at all
        raise _fault(stage, f"{what} raised {type(error).__name__}: {error} (--debug shows where)") from error


def _fault(stage: Component, told: str) -> PluginError:
    return PluginError(f"{stage.key}: {describe(stage)}: {told}")


def predictor(
    pipeline: Pipeline,
    config: Config,
    device: str = "cpu",
    before: Callable[[], None] = lambda: None,
    explain: bool = False,
) -> Predictor:
    """A Predictor that decides with PyTorch, else the same code as at deployment; `before` is called at each run.

    With `explain` its runs give the attention weights too.
    """
    learned = pipeline.learned
    options = option_table(*config.head)

    def run(feeds: Arrays) -> Arrays:
        before()
        tensors = {
            name: torch.from_numpy(np.require(array, requirements=["C", "W"])).to(device)
            for name, array in feeds.items()
        }
        chosen = {
            name: len(feeds[name]) if option["type"] == "size" else tensors[name] for name, option in options.items()
        }
        was_training = pipeline.training
        pipeline.eval()
        with torch.no_grad():
            features = {name: tensor for name, tensor in tensors.items() if name not in options}
            decision = pipeline.decide(features, chosen, explain)
        pipeline.train(was_training)
        return {name: tensor.cpu().numpy() for name, tensor in decision.items()}

    metrics = {
        task.name: own
        for task, head in zip(learned.tasks, config.head, strict=True)
        if (own := head_metrics(head.cls, head.options, describe(head)))
    }
    return Predictor(
        learned.featurizer,
        learned.kind,
        run,
        options,
        pipeline.limits,
        metrics=metrics,
        score_types=metric_types(config.head),
    )
