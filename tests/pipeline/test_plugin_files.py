"""A plugin in one file: given by a command or in Python, part of the fingerprint of a run, absent from the bundle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from factory import LEAN, Done, process, seqpipe, tagging
from pretrained import checkpoint

from seqpipe import ConfigError, Pipeline, UsageError
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import STATE
from seqpipe.config.yaml import parse
from seqpipe.errors import PluginError

PLUGIN = '''import torch
from torch import Tensor, nn

from seqpipe.plugin import hookimpl


class Window(nn.Module):
    """Adds to each token a convolution over its neighbours."""

    def __init__(self, dim: int, *, width: int = 3):
        super().__init__()
        self.dim, self.conv = dim, nn.Conv1d(dim, dim, width, padding="same")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # (B, T, D), (B, T) -> (B, T, D)
        return x + self.conv(torch.where(mask[..., None], x, 0.0).transpose(1, 2)).relu().transpose(1, 2)


@hookimpl
def register_encoders():
    return {"window": Window}
'''
SHORT = (*LEAN, "encoder=window", "train.epochs=1")
TEXT = b"Ada flew to Rome\n"
BROKEN = {
    "syntax": (
        PLUGIN.replace("self.dim, self", "self.dim self"),
        "my_encoder.py:12: the plugin is broken: SyntaxError",
    ),
    "import": (
        f"\nimport nothing_of_that_name\n{PLUGIN}",
        "my_encoder.py:2: the plugin is broken: ModuleNotFoundError",
    ),
    "exit": (f"{PLUGIN}\nraise SystemExit(0)\n", "my_encoder.py:22: the plugin is broken: SystemExit: 0"),
    "hook fails": (PLUGIN.replace(": Window}", ": Windov}"), "my_encoder.py:20: the plugin is broken: NameError"),
    "no hook": (PLUGIN.replace("@hookimpl\n", ""), "my_encoder.py: the plugin is broken: TypeError: it has no hook"),
    "misspelt hook": (PLUGIN.replace("encoders", "encodes"), "my_encoder.py: the plugin is broken: PluginValidation"),
    "other API": (f"{PLUGIN}SEQPIPE_PLUGIN_API = 99\n", "it is written for plugin API 99"),
    "a text": (PLUGIN.replace(": Window}", ': "my_encoder:Window"}'), "must map names to classes"),
    "null bytes": (f"{PLUGIN}\0", "my_encoder.py"),
}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder with a YAML and a plugin in one file."""
    torch.set_num_threads(1)
    tagging(tmp_path)
    Path(tmp_path, "my_encoder.py").write_text(PLUGIN)
    with contextlib.chdir(tmp_path):
        yield tmp_path


def with_plugin(command: str, *arguments: str) -> Done:
    return seqpipe(command, *arguments, "--plugin", "my_encoder.py")


def test_a_run_with_a_plugin_file_makes_a_bundle_that_answers_without_it(here: Path) -> None:
    checked = with_plugin("check", "tiny.yaml", *SHORT)
    assert checked.code == 0, checked.err
    assert checked.err.rstrip().endswith("encoder=window train.epochs=1 --plugin=my_encoder.py")
    trained = with_plugin("train", "tiny.yaml", *SHORT)
    assert trained.code == 0, trained.err
    assert "seqpipe export runs/tiny --plugin my_encoder.py" in trained.err
    assert with_plugin("run", "tiny.yaml", *SHORT).code == 0
    assert with_plugin("export", "runs/tiny").code == 0
    assert with_plugin("evaluate", "runs/tiny", "--device", "cpu").code == 0
    Path("my_encoder.py").unlink()
    answered = process("predict", "runs/tiny/bundle", folder=here, stdin=TEXT)
    assert (answered.code, answered.err.count("plugin")) == (0, 0), answered.err
    assert process("verify", "runs/tiny/bundle", folder=here).code == 0
    assert process("evaluate", "runs/tiny/bundle", folder=here).code == 0


def test_the_file_is_part_of_the_fingerprint_of_a_run(here: Path) -> None:
    assert with_plugin("train", "tiny.yaml", *SHORT).code == 0
    digest = hashlib.sha256(PLUGIN.encode()).hexdigest()
    assert digest in Path("runs/tiny", STATE).read_text()
    assert with_plugin("train", "tiny.yaml", *SHORT).code == 0
    Path("my_encoder.py").write_text(PLUGIN.replace("x + self", "2 * x + self"))
    other = hashlib.sha256(Path("my_encoder.py").read_bytes()).hexdigest()
    changed = with_plugin("run", "tiny.yaml", *SHORT)
    assert changed.code == 2
    assert f"encoder window: my_encoder.py sha256:{digest} -> my_encoder.py sha256:{other}" in changed.err
    assert with_plugin("train", "tiny.yaml", *SHORT, "--fresh").code == 0


def test_an_edited_file_is_loaded_anew_in_the_same_process(here: Path) -> None:
    first = Pipeline("tiny.yaml", SHORT, plugins=["my_encoder.py"])
    Path("my_encoder.py").write_text(PLUGIN.replace("width: int = 3", "width: int = 5"))
    second = Pipeline("tiny.yaml", SHORT, plugins=[here / "my_encoder.py"])
    widths = [pipeline.config.inputs[0].encoder[0].options["width"] for pipeline in (first, second)]
    assert widths == [3, 5]


def test_python_runs_with_a_plugin_file(here: Path) -> None:
    run = Pipeline("tiny.yaml", SHORT, plugins=["my_encoder.py"]).run(device="cpu")
    Path("my_encoder.py").unlink()
    assert isinstance(run.bundle.load("cpu")("Ada flew to Rome"), list)
    with pytest.raises(UsageError, match=r"must be a list of files, such as \['my_encoder.py'\]"):
        Pipeline("tiny.yaml", SHORT, plugins="my_encoder.py")


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_an_error_with_its_file_and_line(fault: str, here: Path) -> None:
    code, message = BROKEN[fault]
    Path("my_encoder.py").write_text(code)
    done = with_plugin("check", "tiny.yaml", "--static", *SHORT)
    assert (done.code, message in done.err, "Traceback" in done.err) == (2, True, False), done.err
    Path("my_encoder.py").write_text(PLUGIN)
    assert with_plugin("check", "tiny.yaml", "--static", *SHORT).code == 0


def test_a_file_that_is_not_there_is_an_error_with_its_cure(here: Path) -> None:
    done = seqpipe("check", "tiny.yaml", "--static", "--plugin", "acme-conv")
    assert done.code == 2
    assert "acme-conv: no such file or directory; --plugin takes a Python file with a hook" in done.err
    assert seqpipe("check", "tiny.yaml", "--static", "--plugin", ".").code == 2


def test_messages_know_the_components_of_a_file(here: Path) -> None:
    misspelt = with_plugin("check", "tiny.yaml", "--static", "encoder=windov")
    assert (misspelt.code, "did you mean 'window'?" in misspelt.err) == (2, True)
    option = with_plugin("check", "tiny.yaml", "--static", "encoder={use: window, widht: 5}")
    assert (option.code, "did you mean 'width'?" in option.err) == (2, True)
    Path("my_encoder.py").write_text(PLUGIN.replace("return x + ", "return x / 0 if mask else "))
    failing = with_plugin("check", "tiny.yaml", *SHORT)
    assert (failing.code, "encoder 'window' of my_encoder.py: `forward` raised" in failing.err) == (2, True), (
        failing.err
    )
    Path("my_encoder.py").write_text(PLUGIN.replace('"window"', '"lstm"'))
    both = with_plugin("check", "tiny.yaml", "--static")
    assert "write 'my_encoder.py/lstm' or 'seqpipe-nlp/lstm'" in both.err


def test_commands_that_build_or_describe_pipelines_take_the_file(here: Path) -> None:
    assert "encoder    window " in with_plugin("plugins", "list").out
    assert "width   a whole number  3" in with_plugin("plugins", "show", "window").out
    assert "encoder.my_encoder.py.window" in with_plugin("schema").out
    assert "my_encoder.py" not in seqpipe("schema").out
    assert "window" not in seqpipe("plugins", "list").out
    assert with_plugin("train", "tiny.yaml", *SHORT).code == 0
    without = seqpipe("vectors", "runs/tiny")
    assert (without.code, "give this file by --plugin" in without.err) == (2, True)
    assert with_plugin("vectors", "runs/tiny").code == 0
    assert Path("runs/tiny/vectors.vec").exists()


READER = """from seqpipe.plugin import hookimpl


class Upper:
    \"\"\"One text a line.\"\"\"

    def read(self, path):
        for i, line in enumerate(path.read_text().splitlines(), 1):
            yield {"text": line, "label": line[:1], "where": f"{path}:{i}"}


@hookimpl
def register_readers():
    return {"upper": Upper}
"""


def test_vectors_are_distilled_for_words_that_a_reader_in_a_file_reads(here: Path, tmp_path: Path) -> None:
    Path("my_encoder.py").write_text(READER)
    made = checkpoint(tmp_path / "bert", "bert", ["anna and paul flew away"] * 9)
    yaml = "data: {reader: upper, train: words.txt}\ntokenizer: words\nembedding: {use: lookup, dim: 4}\nhead: label\n"
    Path("words.yaml").write_text(yaml)
    Path("words.txt").write_text("anna paul\nflew away\n")
    done = with_plugin(
        "distill-vectors", made, "-o", "out.vec", "--pipeline", "words.yaml", "--dim", "2", "--device", "cpu"
    )
    assert done.code == 0, done.err
    assert "no reader named 'upper'" in seqpipe("distill-vectors", made, "-o", "a.vec", "--pipeline", "words.yaml").err


def test_no_yaml_loads_a_file(here: Path) -> None:
    assert with_plugin("train", "tiny.yaml", *SHORT).code == 0
    for name in [name for name in sys.modules if name.startswith("plugin_file_")]:
        del sys.modules[name]
    for arguments in (("export", "runs/tiny"), ("check", "runs/tiny/pipeline.yaml", "--static")):
        done = seqpipe(*arguments)
        assert done.code == 2
        assert "no encoder named 'window'" in done.err
        assert "the run was made with my_encoder.py: give this file by --plugin" in done.err
    for key in ("plugins.files=[my_encoder.py]", "plugins.allow=[my_encoder.py]", "encoder.use=my_encoder.py/window"):
        assert seqpipe("check", "tiny.yaml", "--static", *SHORT, key).code == 2
    assert not any(name.startswith("plugin_file_") for name in sys.modules)


def test_installed_plugins_may_be_off_beside_a_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    assert with_plugin("check", "tiny.yaml", "--static", *SHORT, "plugins.allow=[]").code == 0


def test_two_files_of_one_name_are_refused(here: Path) -> None:
    Path("more").mkdir()
    Path("more/my_encoder.py").write_text(PLUGIN.replace('"window"', '"other"'))
    with pytest.raises(PluginError, match=r"another plugin is called my_encoder.py too; rename one of them"):
        Plugins(files=[Path("my_encoder.py"), Path("more/my_encoder.py")])
    assert "window" in Plugins(files=[Path("my_encoder.py"), here / "my_encoder.py"]).names("encoder")


def test_a_pipeline_that_is_needed_may_use_the_file_too(here: Path) -> None:
    tiny: Any = parse(Path("tiny.yaml").read_bytes(), "tiny.yaml").data
    tiny |= {"embedding": {"use": "lookup", "dim": 8}, "encoder": "window", "head": "tags"}
    Path("source.yaml").write_text(json.dumps({**tiny, "name": "source"}))
    needs = [{"path": "runs/source", "run": "source.yaml"}]
    embedding = {"use": "lookup", "dim": 8, "init": "runs/source"}
    Path("next.yaml").write_text(json.dumps({**tiny, "name": "next", "needs": needs, "embedding": embedding}))
    Pipeline("next.yaml", {"train.epochs": 1}, plugins=["my_encoder.py"]).train(device="cpu")
    assert Path("runs/source/bundle").exists()
    with pytest.raises(ConfigError, match="no encoder named 'window'"):
        Pipeline("next.yaml")
