"""Memory of a training step: a trial with the longest text, and allocations that fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from seqpipe.errors import DataError
from seqpipe.training.datasets import Batches, Windows
from seqpipe.training.network import Network, is_out_of_memory


def try_longest_text(network: Network, batches: Batches | Windows, device: str = "cpu") -> None:
    """Try a forward and a backward pass with the batch of the longest text, which training may meet hours later.

    Windows of a token corpus have one length, so none is tried.

    Raises:
        DataError: An allocation fails; the message names the record, the stage and a fix.
    """
    if isinstance(batches, Windows):
        return
    longest = int(batches.lengths.argmax())
    order = batches.one_pass(np.random.default_rng(batches.seed))  # an epoch may not have all texts
    rows = next(rows for rows in order if longest in rows)
    with unchanged(network.to(device)):
        try:
            network.loss({name: tensor.to(device) for name, tensor in batches(rows).items()}).backward()
        except (MemoryError, RuntimeError) as error:
            stage, text = failed_stage(error), batches.data[longest]
            fix = cure(text.length // 2)
            if len(rows) > 1:
                cost = batches.cost(text.length)
                fix = f"set train.batch_tokens: {cost}, for one such text in a batch in place of {len(rows)}"
            problem = f"{text.length:,} tokens need more memory in {stage}, in a step of training"
            raise DataError(f"{text.where}: {problem}; {fix}") from error
        finally:
            network.zero_grad(set_to_none=True)


def cure(most: int) -> str:
    """Return the fix for a text that is too long."""
    fix = f"set train.max_tokens: {most} and train.too_long: truncate (or split, for tags and language models)"
    return f"shorten the text, or {fix}"


def failed_stage(error: Exception) -> str:
    """Return the stage whose allocation failed; the error itself is raised again if it is about something else."""
    if not is_out_of_memory(error):
        raise error
    return str(error) if type(error) is MemoryError and str(error) else "the gradients"


def counters(module: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the small buffers of a module, such as counters of steps, and copies; a step changes no large one."""
    return [(buffer, buffer.clone()) for buffer in module.buffers() if buffer.numel() <= 1000]


@contextmanager
def unchanged(network: Network) -> Iterator[None]:
    """Restore the random state and what `counters` returns."""
    buffers = counters(network)
    was_training, carried = network.training, network.carried_states
    with torch.random.fork_rng():
        network.train()
        yield
    network.train(was_training)
    network.carried_states = carried
    for buffer, before in buffers:
        buffer.copy_(before)
