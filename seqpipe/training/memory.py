"""Memory of a training step: what the longest text needs, what is free, and allocations that fail."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from seqpipe.config.contract import is_quadratic
from seqpipe.errors import DataError
from seqpipe.runtime.predictor import trim_heap
from seqpipe.training.datasets import Batches, Example, Windows, collate, first_part
from seqpipe.training.pipeline import Pipeline, is_out_of_memory

TRIED = (256, 512, 1024)  # lengths of a text that are measured for a longer one
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

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free.append(limit - _kib(_STATUS, "VmSize") * 1024)
    return max(0, min(free))


def _kib(path: str | Path, key: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def longest_text(
    pipeline: Pipeline, batches: Batches | Windows, device: str = "cpu", allowed: int | None = None
) -> str:
    """Return a line about the memory that a step with the longest text needs; "" if it cannot be measured.

    A text of up to 1,024 tokens is tried, with those beside it in its batch. For a longer one, its first 256, 512 and
    1,024 tokens are tried, and a polynomial through the peaks, of the second degree if a stage is `quadratic`, gives
    the estimate, which is too high if the target ends earlier. Optimizer moments are added. A text of up to `allowed`
    tokens, `train.max_tokens`, is never refused.

    Raises:
        DataError: The need is greater than the free memory; the message names the record, the stages and a fix.
    """
    if isinstance(batches, Windows) or (device == "cpu" and not os.access(_CLEAR, os.W_OK)):
        return ""
    example = max(batches.data, key=lambda example: example.length)
    size, free = example.length, free_memory(device)
    lengths = [size] if size <= TRIED[-1] else [*TRIED]
    rows = max(1, min(batches.tokens // batches.cost(size), batches.most or size))
    with _unchanged(pipeline.to(device)):
        tried = [[first_part(example, length)] * (rows if length == size else 1) for length in lengths]
        peaks = [_peak(pipeline, batches, data, device) for data in tried]
    moments = 2 * sum(p.nbytes for p in pipeline.parameters() if p.requires_grad)
    measured = [float("inf") if peak is None else float(peak) for peak in peaks]
    degree = 2 if any(is_quadratic(stage) for stage, _ in pipeline.stages) else 1
    curves = [np.poly1d([max(measured)])]
    if len(lengths) > 1 and None not in peaks:
        curves += [np.poly1d(np.polyfit(lengths[-1 - n :], measured[-1 - n :], n)) for n in (1, degree)]

    def need(length: int) -> float:
        return float(max(curve(length) for curve in curves)) + moments

    text = f"{example.where}: {size:,} tokens"
    if free is None or need(size) <= free:
        return f"memory: about {_shown(need(size))} for a step with the longest text, {text}; {_shown(free)} free"
    if allowed is not None and allowed >= size:
        return f"memory: {text} may need more than is free, and are tried, since train.max_tokens allows them"
    fitting = [n for n, peak in zip(lengths, measured, strict=True) if peak + moments <= free]
    fitting += [n for n in range(TRIED[-1], size, 64) if need(n) <= free]
    stages = [f"{stage.key} ({stage.use})" for stage, _ in pipeline.stages if is_quadratic(stage)]
    growth = f"the square of the length in {' and '.join(stages)}" if stages else "the length"
    amount = "more memory" if None in peaks else f"about {_shown(need(size))} of memory, which grows with {growth},"
    fix = f"{cure(max(fitting, default=size // 2))}; train.max_tokens: {size} tries it all the same"
    raise DataError(f"{text} need {amount} in a step of training, and {_shown(free)} are free; {fix}")


def cure(most: int) -> str:
    """Return the fix for a text that is too long."""
    fix = f"set train.max_tokens: {most} and train.too_long: truncate (or split, for tags and language models)"
    return f"shorten the text, or {fix}"


def _shown(size: float | None) -> str:
    if size is None:
        return "an unknown amount is"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _peak(pipeline: Pipeline, batches: Batches, data: Sequence[Example], device: str) -> int | None:
    """Return the peak of memory, in bytes, of a forward and a backward pass; None if there is too little."""
    batch = {name: tensor.to(device) for name, tensor in collate(batches.artifacts, data).items()}
    if device == "cpu":
        trim_heap()
        _CLEAR.write_text("5")  # VmHWM becomes VmRSS
        before = _kib(_STATUS, "VmRSS") * 1024
    else:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    try:
        pipeline.loss(batch).backward()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        pipeline.zero_grad(set_to_none=True)
    peak = _kib(_STATUS, "VmHWM") * 1024 if device == "cpu" else torch.cuda.max_memory_allocated(device)
    return max(0, peak - before)


@contextmanager
def _unchanged(pipeline: Pipeline) -> Iterator[None]:
    """Restore the random state and small buffers, such as counters of steps; a step changes no large one."""
    buffers = [(buffer, buffer.clone()) for buffer in pipeline.buffers() if buffer.numel() <= 1000]
    was_training, carried = pipeline.training, pipeline.carried_states
    with torch.random.fork_rng():
        pipeline.train()
        yield
    pipeline.train(was_training)
    pipeline.carried_states = carried
    for buffer, before in buffers:
        buffer.copy_(before)
