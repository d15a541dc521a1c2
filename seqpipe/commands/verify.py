"""`seqpipe verify`: check that a bundle is intact and answers as on the machine that exported it."""

from __future__ import annotations

from typing import Annotated

import typer

from seqpipe.commands.options import AnswerOptions, BundlePath, FailOn, with_options
from seqpipe.console import printable
from seqpipe.errors import BundleError, UsageError


@with_options(AnswerOptions)
def verify(
    output: AnswerOptions,
    bundle: BundlePath,
    fail_on: FailOn = None,
    sha256: Annotated[str | None, typer.Option(metavar="DIGITS", help="Expected SHA-256 of bundle.json.")] = None,
    untrusted: Annotated[
        bool,
        typer.Option(
            "--untrusted", help="Open the bundle in a separate process with limited memory and time, on the CPU."
        ),
    ] = False,
    memory: Annotated[
        float | None, typer.Option(metavar="GIB", help="With --untrusted: maximum memory in GiB; default: 4.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="With --untrusted: maximum time in seconds; default: 120.")
    ] = None,
) -> None:
    """Check the hashes of a bundle and repeat its golden examples on this machine. Needs no PyTorch."""
    if untrusted:
        from seqpipe.runtime.untrusted import RLimits, verify_untrusted

        if output.device not in ("auto", "cpu") or fail_on:
            raise UsageError("--untrusted opens a bundle on the CPU; omit --device and --fail-on")
        limits = RLimits(RLimits.memory if memory is None else memory, RLimits.seconds if timeout is None else timeout)
        result = verify_untrusted(bundle, limits, sha256)
    else:
        from seqpipe import Bundle

        if memory is not None or timeout is not None:
            raise UsageError("--memory and --timeout are limits of --untrusted; add --untrusted")
        result = Bundle(bundle, sha256).verify(output.device)
    summary = f"hashes right, {result['golden']} golden examples answered the same on {result['device']}"
    if "no_golden" in result:
        summary += f"; {printable(result['no_golden'])}"
    if fail_on or result["device"] == "cuda":
        from seqpipe.runtime.environment import examine_placement

        placement = examine_placement(bundle, output.device, fail_on is not None)
        if placement.state == "error":
            raise BundleError(f"{bundle}: --fail-on {fail_on}: {placement.detail}")
        summary += f"; {placement.detail}"
    output.console.say(f"{bundle}: {summary}\nsha256 of its bundle.json: {result['sha256']}")
    output.print(result)
