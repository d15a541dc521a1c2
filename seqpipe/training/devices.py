"""Processes of one training, one for each device: their shares of a batch, sums over them, and one report of an error.

`torchrun` starts them, or `launch` with its code. They communicate by `torch.distributed`: gloo for tensors on a CPU
and for Python objects, nccl for tensors on CUDA. Every process has all weights and the optimizer's state.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from seqpipe.errors import EnvError, InterruptedRunError, SeqpipeError, UsageError
from seqpipe.runtime.predictor import cores

VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")  # by which torchrun tells a process its place
LAUNCHED = "SEQPIPE_LAUNCHED"  # set by `launch`, which reports processes that were killed
FOREVER = timedelta(days=30)  # the others wait while the first process fits, scores and exports
SILENT = "ended without a message"
DENSE, SPARSE = 1, 2  # a gradient in `sum_gradients`

Item = TypeVar("Item")


@dataclass(frozen=True)
class TrainingProcesses:
    """All processes of a training as one of them sees them; by default it is the only one."""

    rank: int = 0
    count: int = 1
    store: Any = None  # shared by all processes, and still there when one has ended

    def share(self, rows: Sequence[Item]) -> Sequence[Item]:
        """Return the part of this process: every `count`-th, from its rank on."""
        return rows[self.rank :: self.count]

    def batch_share(self, rows: Sequence[Item]) -> Sequence[Item]:
        """Return this process's rows of a batch; the first row, which must not count, if there are too few."""
        return self.share(rows) or rows[:1]

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.agree([0])

    def agree(self, numbers: Sequence[int]) -> list[int]:
        """Return the maximum of each number over all processes."""
        if self.count == 1:
            return list(numbers)
        tensor = torch.tensor(numbers)
        with self._connected():
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def sum(self, tensor: Tensor) -> Tensor:
        """Return a tensor, which has no gradient, summed in place over all processes."""
        if self.count > 1:
            with self._connected():
                dist.all_reduce(tensor)
        return tensor

    def gather(self, value: Item) -> list[Item]:
        """Return the value of every process, by rank."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            with self._connected():
                dist.all_gather_object(values, value)
        return values

    def interleave(self, rows: Sequence[Item]) -> list[Item]:
        """Return the rows of all processes in the order in which `share` divided them."""
        parts = self.gather(list(rows))
        return [parts[i % self.count][i // self.count] for i in range(sum(map(len, parts)))]

    def merge(self, rows: Tensor, count: int, axis: int = 0) -> Tensor:
        """Return all rows of a batch, `count` along an axis, of which each process has its `batch_share`."""
        return torch.stack(self.interleave(rows.cpu().unbind(axis))[:count], axis).to(rows.device)

    def by_first(self, function: Callable[[], Item]) -> Item:
        """Return the value of a function that only the first process calls."""
        values: list[Any] = [None if self.rank else function()]
        if self.count > 1:
            with self._connected():
                dist.broadcast_object_list(values)
        return values[0]

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Run the block in the first process, then in the others, which find the files that it wrote."""
        if self.rank:
            self.wait()
        yield
        if not self.rank:
            self.wait()

    def sum_gradients(self, parameters: Sequence[Tensor], loss: Tensor, received: int) -> int:
        """Sum gradients, rows-only ones too, and the loss in place; return the greatest signal that a process received.

        A parameter without a gradient in all processes stays without one, so that the optimizer skips it.
        """
        kinds, rows = list[int](), list[int]()
        for parameter in parameters:
            is_sparse = parameter.grad is not None and parameter.grad.is_sparse
            kinds.append(0 if parameter.grad is None else SPARSE if is_sparse else DENSE)
            rows.append(parameter.grad.indices().shape[1] if is_sparse and parameter.grad is not None else 0)
        received, *agreed = self.agree([received, *kinds, *rows])
        dense = [loss]
        for parameter, kind, most in zip(parameters, agreed[: len(kinds)], agreed[len(kinds) :], strict=True):
            if kind == SPARSE:
                parameter.grad = self._sum_rows(parameter, most)
            elif kind == DENSE:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dense.append(parameter.grad)
        totals = self.sum(torch.cat([tensor.detach().flatten() for tensor in dense]))
        for tensor, total in zip(dense, totals.split([tensor.numel() for tensor in dense]), strict=True):
            tensor.copy_(total.view_as(tensor))
        return received

    def _sum_rows(self, table: Tensor, most: int) -> Tensor:
        """Return the sum of the rows-only gradients (V, D) of all processes, each of which has at most `most` rows."""
        indices = torch.full((most,), -1, device=table.device)
        values = table.new_zeros(most, *table.shape[1:])
        if table.grad is not None:
            count = table.grad.indices().shape[1]
            indices[:count], values[:count] = table.grad.indices()[0], table.grad.values()
        all_indices = [torch.empty_like(indices) for _ in range(self.count)]
        all_values = [torch.empty_like(values) for _ in range(self.count)]
        with self._connected():
            dist.all_gather(all_indices, indices)
            dist.all_gather(all_values, values)
        places, gradients = torch.cat(all_indices), torch.cat(all_values)
        is_row = places >= 0
        return torch.sparse_coo_tensor(
            places[is_row][None], gradients[is_row], table.shape, check_invariants=False
        ).coalesce()

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Raise the error of the process that ended, if a process ends while this one communicates with it."""
        try:
            yield
        except RuntimeError as error:
            raise self._ended(error) from error

    def _ended(self, error: RuntimeError) -> SeqpipeError:
        content = None
        with suppress(RuntimeError):  # the process with the store has ended
            content = json.loads(self.store.get("error")) if self.store.check(["error"]) else None
        if content is None:
            reason = "it failed or was killed, perhaps because memory ran out; run the same command to resume"
            ended = f"one of {self.count} processes {SILENT}: {reason}"
            return EnvError(ended if "onnection" in str(error) else f"{ended} ({error})")
        if (code := content["exit_code"]) >= 128:
            return InterruptedRunError(code - 128, content["message"])
        failed = EnvError(f"process {content['rank']} of this training failed: {content['message']}")
        failed.exit_code = code
        return failed

    def is_reporter(self, exit_code: int, message: str) -> bool:
        """Return whether this process reports an error that ends it: the first process that has one does."""
        content = json.dumps({"rank": self.rank, "exit_code": exit_code, "message": message})
        is_first = True
        with suppress(RuntimeError):  # the process with the store has ended
            is_first = self.store.compare_set("error", "", content) == content.encode()
        return is_first and not (SILENT in message and LAUNCHED in os.environ)


ALONE = TrainingProcesses()
_joined: list[TrainingProcesses] = []


def current_processes() -> TrainingProcesses:
    """Return the processes that this one has joined; itself alone before."""
    return _joined[0] if _joined else ALONE


def is_started() -> bool:
    """Return whether torchrun, or `launch`, started this process as one of several."""
    return all(name in os.environ for name in VARIABLES) and os.environ["WORLD_SIZE"] != "1"


def join() -> TrainingProcesses:
    """Join the processes that torchrun started, and wait for them; alone without torchrun."""
    if not _joined and is_started():
        store, rank, count = next(dist.rendezvous("env://", timeout=FOREVER))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=FOREVER)
        prefix = f"seqpipe-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
        _joined.append(TrainingProcesses(rank, count, dist.PrefixStore(prefix, store)))
        atexit.register(_leave)
    return current_processes()


def _leave() -> None:
    with suppress(RuntimeError):  # the process with the store has ended
        if not current_processes().store.check(["error"]):
            dist.destroy_process_group()


def local_device(name: str) -> str:
    """Return the device `cuda` of one of several processes on a machine: that with the number of the process."""
    if name != "cuda" or not is_started():
        return name
    number, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= devices:
        raise EnvError(f"process {number + 1} of this machine has no device: PyTorch sees {devices}; start fewer")
    torch.cuda.set_device(number)
    return f"cuda:{number}"


def launch(count: int, device: str) -> int:
    """Run this command in several processes of this machine by the code of torchrun; return its exit code."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    devices = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    if (device == "cuda" or devices) and count > devices:
        raise EnvError(f"--devices {count}: PyTorch sees {devices} CUDA devices; lower it, or set --device cpu")
    if device.startswith("cuda:"):
        raise UsageError(f"--device {device} with --devices: each process has a device of its own; set --device cuda")
    os.environ[LAUNCHED] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // count)))
    logging.disable()  # the processes report by themselves
    arguments = ["--standalone", f"--nproc-per-node={count}", "-m", "seqpipe", *sys.argv[1:]]
    try:
        run.run(run.parse_args(arguments))
    except SignalException as error:
        return 128 + int(error.sigval)
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        if killed := [
            code for code in codes if code < 0 and code != -signal.SIGTERM
        ]:  # which torchrun sends the others
            place = f"one of {count} processes was ended by signal {-killed[0]}"
            raise EnvError(f"{place}, perhaps because memory ran out; run the same command to resume") from error
        return max(codes) if max(codes) > 0 else 128 + signal.SIGTERM
    return 0
