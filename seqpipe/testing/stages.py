"""The checks that embeddings, encoders and heads share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from seqpipe.testing.bench import RAGGED, Bench
from seqpipe.testing.invariance import invariance_checks
from seqpipe.testing.isolation import access_check, import_check
from seqpipe.testing.options import member_check, option_checks
from seqpipe.testing.report import Check
from seqpipe.testing.reproducibility import reproducibility_checks, train_steps
from seqpipe.testing.shapes import SHAPES, shape_checks


def stage_checks(bench: Bench) -> list[Check]:
    subject = bench.subject

    def everything() -> None:
        """Build, train and decide, for the watch over files and network."""
        pipeline = bench.pipeline()
        train_steps(bench, pipeline, 1)
        bench.decide(pipeline.eval(), bench.feeds(RAGGED))

    return [
        *option_checks(subject),
        member_check(subject),
        import_check(subject),
        *shape_checks(bench),
        *invariance_checks(bench),
        *reproducibility_checks(bench),
        access_check(subject, everything, SHAPES),
    ]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """One thread, and the random numbers of whoever calls stay as they were."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
