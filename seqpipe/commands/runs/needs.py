"""What a pipeline needs and is not there yet: other runs, which are trained first, and small models, which are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seqpipe.commands.runs.full_run import run_all
from seqpipe.config.init_from import relative_path, run_problem
from seqpipe.config.loader import Config, load
from seqpipe.config.model import Need
from seqpipe.config.run_layout import CHECKPOINTS, LAST
from seqpipe.console import Console
from seqpipe.errors import ConfigError
from seqpipe.export.graph_cache import GraphCache
from seqpipe.training import checkpoint
from seqpipe.training.tiny_bert import checkpoint_texts, tiny_bert


@dataclass(frozen=True)
class Missing:
    """A need that is not met, of the pipeline that has it."""

    need: Need
    config: Config

    def __str__(self) -> str:
        path = relative_path(self.need.path)
        if self.need.run:
            return f"{path}: the run of {relative_path(self.need.run)}, which is run first"
        return f"{path}: a tiny BERT with random weights, which is made from the training texts"


def missing_needs(config: Config) -> list[Missing]:
    """What is to be made before a pipeline can be run, in the order in which it is made.

    Raises ConfigError for a cycle, and for a folder that is not the run of its YAML.
    """
    return list({missing.need.path: missing for missing in _missing(config, (config.file.resolve(),))}.values())


def _missing(config: Config, chain: Sequence[Path]) -> Iterator[Missing]:
    """The unmet needs of a pipeline behind those of the pipelines it needs; `chain` are the files that led here."""
    for need in config.needs:
        if need.run is None:
            if not need.path.exists():
                yield Missing(need, config)
            continue
        if not run_problem(need.path) and checkpoint.load(need.path / CHECKPOINTS / LAST)["progress"]["done"]:
            continue
        if need.run.resolve() in chain:
            way = " -> ".join(path.name for path in (*chain, need.run))
            raise ConfigError([replace(need.problem, message=f"pipelines need each other in a cycle: {way}")])
        source = load(need.run)
        if source.name != need.path.name:
            message = f"the run of {need.run.name} is called {source.name!r}; end the path with this name"
            raise ConfigError([replace(need.problem, key=f"{need.problem.key}.path", message=message)])
        yield from _missing(source, (*chain, need.run.resolve()))
        yield Missing(need, config)


def make_needs(config: Config, console: Console, device: str, cache: GraphCache | None) -> bool:
    """Run and make what a pipeline needs and is not there; return whether anything was made."""
    steps = missing_needs(config)
    for step in steps:
        console.say(f"{config.name} needs {step}")
        if step.need.run:
            run_all(load(step.need.run), console, device, cache=cache, runs=Path(relative_path(step.need.path.parent)))
            console.say(f"\nthis was for {config.name}, which goes on")
        else:
            texts = checkpoint_texts(step.config, step.need.path)
            pieces = tiny_bert(step.need.path, texts, step.need.pieces)
            console.say(f"  made {relative_path(step.need.path)}: {pieces:,} pieces of words")
    return bool(steps)
