"""Memory of a training step: what the longest text needs, what is free, and allocations that fail."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from seqpipe.config.contract import is_quadratic
from seqpipe.errors import DataError
from seqpipe.runtime.predictor import trim_heap
from seqpipe.training.datasets import Batch, Batches, Windows, first_part
from seqpipe.training.pipeline import Pipeline, is_out_of_memory

TRIED = (256, 512, 1024, 2048, 4096)  # lengths of a text that are measured for a longer one
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # parameters of mallopt(3)
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def free_memory(device: str = "cpu") -> int | None:
    """Return the bytes that this process can still allocate: of the machine, its container and its own limit.

    None if the system does not tell.
    """
    if device != "cpu":
        return torch.cuda.mem_get_info(device)[0]
    if not Path("/proc/meminfo").exists():
        return None
    free = [_kib("/proc/meminfo", "MemAvailable") * 1024]
    group = Path("/sys/fs/cgroup")
    if (group / "memory.max").exists() and (most := (group / "memory.max").read_text().strip()) != "max":
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
        free.append(int(most) - int((group / "memory.current").read_text()) + int(cached))
    import resource  # of Unix only

    for name, key in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        limit, _ = resource.getrlimit(name)
        if limit != resource.RLIM_INFINITY:
            free.append(limit - _kib(_STATUS, key) * 1024)
    return max(0, min(free))


def _kib(path: str | Path, key: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def longest_text(
    pipeline: Pipeline, batches: Batches | Windows, device: str = "cpu", allowed: int | None = None
) -> str:
    """Return a line about the memory that a step with the longest text needs; "" if it cannot be measured.

    Its batch is tried, after the same share of each of its texts: of 256 tokens of the longest, 512 and so on, up to
    4,096, or to the first that takes three seconds of a processor. Beyond those, the need grows by the power of the
    length that the last two show, from 1 to 2, or 1 if no stage is `quadratic`. On a CPU that growth is that without
    fragments of the heap, and one more trial measures these. Optimizer moments are added. A text of up to `allowed`
    tokens, `train.max_tokens`, is never refused.

    Raises:
        DataError: The need is greater than the free memory; the message names the record, the stages and a fix.
    """
    if isinstance(batches, Windows) or (device == "cpu" and not os.access(_CLEAR, os.W_OK)):
        return ""
    longest = int(batches.lengths.argmax())
    rows = [batches.data[i] for i in next(rows for rows in batches.order(batches.epoch) if longest in rows)]
    size, free = batches.data[longest].length, free_memory(device)
    most_power = 2.0 if any(is_quadratic(stage) for stage, _ in pipeline.stages) else 1.0
    moments = 2 * sum(p.nbytes for p in pipeline.parameters() if p.requires_grad)
    needs, fragments, failed = dict[int, int](), 0.0, ""  # fragments in bytes a token

    def need(length: int) -> float:
        if length in needs or not needs:
            return needs.get(length, 0) + fragments * length
        *before, (last, most) = needs.items()
        power = most_power
        if before:
            shorter, less = before[-1]
            power = min(power, max(1.0, math.log(most / less) / math.log(last / shorter)))
        return float(most * (length / last) ** power) + fragments * length

    def measure(length: int) -> int:
        cut = replace(batches, data=[first_part(row, length, length / size) for row in rows])
        return max(1, _peak(pipeline, cut(range(len(rows))), device) + moments)

    is_tried = size <= TRIED[-1]
    has_fragments = device == "cpu" and not is_tried
    with unchanged(pipeline.to(device)):
        try:
            with _without_fragments() if has_fragments else nullcontext():
                for length in [*(n for n in TRIED if n < size), *([size] if is_tried else [])]:
                    if free is not None and need(length) > free:
                        break
                    clock = time.process_time()
                    needs[length] = measure(length)
                    if time.process_time() - clock > 3:
                        break
            if has_fragments:
                last, most = needs.popitem()
                fragments = max(0, measure(last) - most) / last
                needs[last] = most
        except (MemoryError, RuntimeError) as error:
            failed = failed_stage(error)
    text = f"{batches.data[longest].where}: {size:,} tokens"
    if not failed and (free is None or need(size) <= free):
        return f"memory: about {_shown(need(size))} for a step with the longest text, {text}; {_shown(free)} free"
    if allowed is not None and allowed >= size:
        return f"memory: {text} may need more than is free, and are tried, since train.max_tokens allows them"
    shorter = [*needs, *range(size if failed else max(needs, default=size), size, 64)]
    fitting = [n for n in shorter if n < size and (free is None or need(n) <= free)]
    stages = [f"{stage.key} ({stage.use})" for stage, _ in pipeline.stages if is_quadratic(stage)]
    growth = f"the square of the length in {' and '.join(stages)}" if stages else "the length"
    amount = f"about {_shown(need(size))} of memory, which grows with {growth},"
    amount = f"more memory in {failed}," if failed else amount
    fix = f"{cure(max(fitting, default=size // 2))}; train.max_tokens: {size} tries it all the same"
    if len(rows) > 1:
        fix = f"set train.batch_tokens: {batches.cost(size)}, for one such text in a batch in place of {len(rows)}"
    raise DataError(f"{text} need {amount} in a step of training, and {_shown(free)} are free; {fix}")


def cure(most: int) -> str:
    """Return the fix for a text that is too long."""
    fix = f"set train.max_tokens: {most} and train.too_long: truncate (or split, for tags and language models)"
    return f"shorten the text, or {fix}"


def _shown(size: float | None) -> str:
    if size is None:
        return "an unknown amount is"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def failed_stage(error: Exception) -> str:
    """Return the stage whose allocation failed; the error itself is raised again if it is about something else."""
    if not is_out_of_memory(error):
        raise error
    return str(error) if type(error) is MemoryError and str(error) else "the gradients"


def _peak(pipeline: Pipeline, batch: Batch, device: str) -> int:
    """Return the peak of memory, in bytes, of a forward and a backward pass."""
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    if device == "cpu":
        trim_heap()
        _CLEAR.write_text("5")  # VmHWM becomes VmRSS
        before = _kib(_STATUS, "VmRSS") * 1024
    else:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    try:
        pipeline.loss(batch).backward()
    finally:
        pipeline.zero_grad(set_to_none=True)
    peak = _kib(_STATUS, "VmHWM") * 1024 if device == "cpu" else torch.cuda.max_memory_allocated(device)
    return max(0, peak - before)


@contextmanager
def _without_fragments() -> Iterator[None]:
    """Allocate each block of 64 KiB or more in pages of its own, where the C library is glibc.

    Fragments of its heap can be as large as all blocks of a shorter text, which would hide how the need grows.
    Afterwards the thresholds are the largest to which glibc raises them by itself when large blocks are freed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *option: None)
    mallopt(_MMAP_THRESHOLD, 1 << 16)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 64 << 20)


def counters(module: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the small buffers of a module, such as counters of steps, and copies; a step changes no large one."""
    return [(buffer, buffer.clone()) for buffer in module.buffers() if buffer.numel() <= 1000]


@contextmanager
def unchanged(pipeline: Pipeline) -> Iterator[None]:
    """Restore the random state and what `counters` returns."""
    buffers = counters(pipeline)
    was_training, carried = pipeline.training, pipeline.carried_states
    with torch.random.fork_rng():
        pipeline.train()
        yield
    pipeline.train(was_training)
    pipeline.carried_states = carried
    for buffer, before in buffers:
        buffer.copy_(before)
