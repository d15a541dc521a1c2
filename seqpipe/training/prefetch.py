"""Batches made before the step that needs them: by a thread for a GPU, by processes from data that is not in memory.

Processes are those of `concurrent.futures`: their errors arrive as they are, a killed one is an error at once, and they
can be ended. (Those of `torch.utils.data.DataLoader` end when they are collected as garbage, and its signal handler
raises the death of one wherever the program is.)
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch

from seqpipe.errors import EnvError
from seqpipe.runtime.predictor import chunks, cores
from seqpipe.training.datasets import Batch, Batches, Windows, tensors

AHEAD = 4  # calls of each thread or process that are made, or begun, before the step that needs the first batch
OF_A_CALL = 8  # batches that a process makes: a call waits for the thread that trains
MOST_PROCESSES = 4
MIN_UNCACHED_BYTES = 1 << 30  # bytes of a token file, from which on its pages may have to be read from the disk


def process_count(batches: Batches | Windows, threads: int) -> int:
    """Return the number of processes that make batches: none for data in memory, or without two free cores.

    `threads` is the number of cores on which training computes, in each process of this machine. One process is no
    faster than training without it where batches cost about as much as steps, as those of n-grams do.
    """
    if isinstance(batches, Windows):
        is_mapped = isinstance(batches.tokens, np.memmap) and batches.tokens.nbytes >= MIN_UNCACHED_BYTES
    else:
        is_mapped = not isinstance(batches.data, list) and batches.epoch_examples is None
    share = cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # which torchrun sets
    return min(MOST_PROCESSES, share - threads) if is_mapped and share - threads > 1 else 0


class Prefetcher:
    """Context in which batches are made ahead, in order; they are those that `batches` returns, on the CPU.

    Without processes and a GPU they are made when they are needed. For a GPU they are in pinned memory, from which a
    copy does not block.

    Raises:
        EnvError: A process was killed.
    """

    def __init__(self, batches: Batches | Windows, device: torch.device, processes: int = 0):
        self.batches, self.processes = batches, processes
        self.pins = device.type == "cuda"
        self._executor: Executor | None = None

    def __enter__(self) -> Prefetcher:
        if self.processes:
            with _spawning_without_main():
                content = pickle.dumps(self.batches)
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self.processes, context, _start_process, (content,))
        elif self.pins:
            self._executor = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *error: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def __call__(self, order: Iterable[Sequence[int]]) -> Iterator[Batch]:
        """Yield the batches of these rows; the error of one is raised where it would be yielded."""
        if self._executor is None:
            yield from map(self.batches, order)
            return
        futures, parts = deque[Future[list[Any]]](), chunks(order, OF_A_CALL if self.processes else 1)
        try:
            futures.extend(map(self._submit, islice(parts, AHEAD * max(1, self.processes))))
            while futures:
                arrays = futures.popleft().result()
                futures.extend(map(self._submit, islice(parts, 1)))
                for batch in map(tensors, arrays) if self.processes else arrays:
                    yield _pinned(batch) if self.processes and self.pins else batch
        except BrokenProcessPool as error:
            reason = "a process that makes batches was killed, perhaps since memory is short"
            raise EnvError(f"{reason}; run the same command to resume") from error

    def _submit(self, part: Sequence[Sequence[int]]) -> Future[list[Any]]:
        assert self._executor is not None
        if self.processes:
            with _spawning_without_main():  # a call may start a process
                return self._executor.submit(_arrays, part)
        return self._executor.submit(lambda: [_pinned(self.batches(rows)) for rows in part])


def _pinned(batch: Batch) -> Batch:
    return {name: tensor.pin_memory() for name, tensor in batch.items()}


@contextmanager
def _spawning_without_main() -> Iterator[None]:
    """Start processes that do not run the main module, so that a script or notebook needs no guard of it.

    A process that is spawned runs the file of `__main__` again if it has one. Classes of it cannot be pickled here.
    The processes have SIGINT blocked: that of a terminal is for training, which ends them.
    """
    main, blocks = sys.modules["__main__"], hasattr(signal, "pthread_sigmask")  # not on Windows
    sys.modules["__main__"] = ModuleType("__main__")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if blocks else []
    try:
        yield
    finally:
        if blocks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.modules["__main__"] = main


# The functions of such a process.

_batches: Batches | Windows


def _start_process(content: bytes) -> None:
    global _batches
    threading.Thread(target=_end_after_parent, daemon=True).start()
    torch.set_num_threads(1)
    _batches = pickle.loads(content)


def _end_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _arrays(part: Sequence[Sequence[int]]) -> list[dict[str, np.ndarray]]:
    """Return batches as arrays: a tensor would be a file descriptor."""
    return [{name: tensor.numpy() for name, tensor in _batches(rows).items()} for rows in part]
