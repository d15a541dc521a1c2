"""A broken plugin breaks only itself, and says whose it is: ten kinds of fault, through the command."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Install
from tiny_pipelines import SMALL_TAGGER, CommandResult, seqpipe, write_tagger

OWNER = "acme-faults"
NAMED = "acme-faults 0.7"
HOOK = "from seqpipe.plugin import hookimpl\n\n@hookimpl\ndef register_encoders():\n    return {'%s': '%s'}\n"
ENCODER = """
import torch
from torch import nn

class Encoder(nn.Module):
    def __init__(self, dim%s):
        super().__init__()
        self.dim, self.linear = dim, nn.Linear(dim, dim)

    def forward(self, x, mask):
        return %s
"""
SOUND = HOOK % ("sound", "acme_sound:Encoder") + ENCODER % ("", "self.linear(x)")


def encoder(forward: str, more: str = "") -> str:
    return HOOK % ("faulty", "acme_faults:Encoder") + ENCODER % (more, forward)


# What goes wrong when its encoder is used: the command fails, and says whose it is.
UNUSABLE = {
    "an attribute that is not there": (HOOK % ("faulty", "acme_faults:Lost"), 2, "has no attribute 'Lost'"),
    "a signature that swallows options": (encoder("x", ", **options"), 2, "would accept a misspelt option"),
    "an option without a type": (encoder("x", ", *, size=3"), 2, "'size' has no type"),
    "a shape it did not state": (encoder("x[:, :, 1:]"), 2, "not (B, T, 8) as declared"),
    "an error in the middle": (encoder("x / 0 if mask else x"), 2, "raised RuntimeError"),
    "no numbers": (encoder("self.linear(x) * float('nan')"), 4, "returned NaN or infinity for real tokens"),
    "a leak of the padding": (encoder("self.linear(x) + x.mean(1, keepdim=True)"), 5, "values in the padding"),
    "not exportable": (encoder("torch.stack([x[:, t] for t in range(x.shape[1])], 1)"), 5, "does not export"),
    "another answer in the graph": (encoder("x * (1 + torch.compiler.is_exporting())"), 5, "differs between PyTorch"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, install: Install) -> Iterator[None]:
    """The current folder has a YAML, and a sound plugin is installed."""
    install("acme-sound", SOUND, version="1.0")
    write_tagger(tmp_path)
    with contextlib.chdir(tmp_path):
        yield


def check(*overrides: str) -> CommandResult:
    return seqpipe("check", "tiny.yaml", "--static", *overrides)


def everything_else_works() -> None:
    listed = seqpipe("plugins")
    assert listed.code == 0
    assert {"lstm", "sound"} <= {line.split()[1] for line in listed.out.splitlines() if line.startswith("encoder")}
    assert check().code == 0
    assert check("encoder=sound").code == 0


def test_a_plugin_that_cannot_be_read_is_listed_and_named_where_it_is_missed(install: Install) -> None:
    install(OWNER, "raise SystemExit(0)", version="0.7")
    everything_else_works()
    assert f"broken: {NAMED} (toy): SystemExit: 0" in seqpipe("plugins").out
    done = check("encoder=faulty")
    assert (done.code, "no encoder named 'faulty'" in done.err) == (2, True)
    assert f"{NAMED} is broken: SystemExit: 0" in done.err


@pytest.mark.parametrize("fault", UNUSABLE)
def test_a_component_that_goes_wrong_is_named_with_its_distribution(fault: str, install: Install) -> None:
    code, exit_code, message = UNUSABLE[fault]
    install(OWNER, code, version="0.7")
    everything_else_works()
    done = seqpipe("check", "tiny.yaml", *SMALL_TAGGER, "encoder=[sound, faulty]")
    assert (done.code, OWNER in done.err, message in done.err) == (exit_code, True, True), done.err
    assert "encoder.1" in done.err
    assert "Traceback" not in done.err
