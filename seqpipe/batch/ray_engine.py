"""Answer the parts of large inputs with actors of Ray Data, on this machine or on an existing cluster."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from seqpipe.answers.metrics.text import has
from seqpipe.batch.shards import Descriptions, InputPart, PartWriter
from seqpipe.errors import EnvError, SeqpipeError, install_command
from seqpipe.files import json_bytes
from seqpipe.runtime.predictor import cores


class _Actor:
    """One model, which answers parts: rows of their numbers become rows of their completed descriptions."""

    def __init__(self, writer: PartWriter, parts: Descriptions, workplace: str):
        os.chdir(workplace)  # names of files in messages are those of the command
        self.writer, self.parts = writer, {part.number: (part, about) for part, about in parts.items()}

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[bytes]]:
        return {"entry": [self._answer(*self.parts[number]) for number in rows["item"].tolist()]}

    def _answer(self, part: InputPart, about: Any) -> bytes:
        try:
            return json_bytes(self.writer(part, about))
        except SeqpipeError as error:  # a row: Ray would try a part again whose error stays the same
            return json_bytes({"error": str(error), "exit_code": error.exit_code})


@dataclass(frozen=True)
class RayEngine:
    """Engine of `answer_parts`: actors of Ray Data with one model each, on the cluster of RAY_ADDRESS or a local one.

    All actors read and write the paths of the command. Ray starts an actor again that dies, and repeats its part. Parts
    arrive in any order; each is a file with its number.

    Args:
        actors: Most actors at once; None: one for each `threads` cores of the cluster.
        threads: Cores of an actor.
    """

    actors: int | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if not has("ray"):
            raise EnvError(f"--engine ray needs Ray Data: {install_command('ray')}")

    def __call__(self, writer: PartWriter, parts: Descriptions) -> Iterator[dict[str, Any]]:
        """Answer parts; yield their completed descriptions. The first error ends all actors."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.data import ActorPoolStrategy, DataContext

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": cores(), "include_dashboard": False}
        with ray.init(log_to_driver=False, logging_level="ERROR", **local):
            actors = min(len(parts), self.actors or max(1, int(ray.cluster_resources()["CPU"]) // self.threads))
            DataContext.get_current().enable_progress_bars = False  # the command has its own
            numbers = ray.data.from_items([part.number for part in parts], override_num_blocks=len(parts))
            answered = numbers.map_batches(
                _Actor,
                fn_constructor_args=[writer, parts, os.getcwd()],
                compute=ActorPoolStrategy(size=actors),
                num_cpus=self.threads,
                num_gpus=int(writer.model.device != "cpu"),
            )
            try:
                for row in answered.iter_rows():
                    entry = json.loads(row["entry"])
                    if "error" in entry:
                        error = SeqpipeError(entry["error"])
                        error.exit_code = entry["exit_code"]
                        raise error
                    yield entry
            except ray.exceptions.RayError as ray_error:
                *_, cause = str(ray_error).strip().splitlines()
                fix = "the bundle, the inputs and --output need paths that all machines of the cluster share"
                raise EnvError(f"--engine ray: {cause}; {fix}") from ray_error
