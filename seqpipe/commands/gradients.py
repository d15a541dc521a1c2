"""`seqpipe gradients`: vanishing gradients of recurrent networks, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Json, Quiet, make_console, print_json
from seqpipe.errors import UsageError


def gradients(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file of the chart, with the extension .svg.")
    ] = None,
    length: Annotated[int, typer.Option("--length", min=2, max=1000, help="Time steps of a sequence.")] = 40,
    hidden: Annotated[int, typer.Option("--hidden", min=1, max=1024, help="Units of the layer.")] = 32,
    steps: Annotated[int, typer.Option("--steps", min=0, help="Training steps before the gradients are measured.")] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed.")] = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure how much of the gradient reaches each time step of rnn, lstm and gru on a task of long memory."""
    if output and output.suffix != ".svg":
        raise UsageError(f"--output: {output} must have the extension .svg")
    from seqpipe.commands.gradient_chart import chart
    from seqpipe.files import write
    from seqpipe.training.optim import gradient_profile

    cells = ("rnn", "lstm", "gru")
    profiles = [gradient_profile(cell, length=length, hidden=hidden, steps=steps, seed=seed) for cell in cells]
    if not as_json:
        typer.echo(f"{'cell':<6}{'accuracy':>10}{'first step':>14}{'middle step':>14}{'last step':>14}")
        for profile in profiles:
            shares = profile.shares
            columns = "".join(f"{shares[t]:>14.1e}" for t in (0, length // 2, -1))
            typer.echo(f"{profile.cell:<6}{profile.accuracy:>10.2f}{columns}")
    if output:
        title = f"Share of the gradient norm by time step, after {steps} training steps"
        write(output, chart(title, {profile.cell: profile.shares for profile in profiles}).encode())
        make_console(quiet).say(f"wrote {output}")
    result = {
        profile.cell: {"accuracy": profile.accuracy, "norms": profile.norms, "shares": profile.shares}
        for profile in profiles
    }
    print_json(result, as_json)
