"""A plugin in one file: given by a command or in Python, part of the fingerprint of a run, absent from the bundle."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_checkpoints import checkpoint
from tiny_pipelines import SMALL_TAGGER, CommandResult, fail_with, run_process, seqpipe, succeed, write_tagger

from seqpipe import ConfigError, Pipeline, UsageError
from seqpipe.config.plugins import Plugins
from seqpipe.config.run_layout import STATE
from seqpipe.config.yaml import parse_tree
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
FILE = Path("my_encoder.py")
SHORT = (*SMALL_TAGGER, "encoder=window", "train.epochs=1")
BROKEN = "the plugin is broken: "
FAULTS = {
    "syntax": (PLUGIN.replace("self.dim, self", "self.dim self"), f"my_encoder.py:12: {BROKEN}SyntaxError"),
    "import": (f"\nimport no_such_module\n{PLUGIN}", f"my_encoder.py:2: {BROKEN}ModuleNotFoundError"),
    "exit": (f"{PLUGIN}\nraise SystemExit(0)\n", f"my_encoder.py:22: {BROKEN}SystemExit: 0"),
    "hook fails": (PLUGIN.replace(": Window}", ": Windov}"), f"my_encoder.py:20: {BROKEN}NameError"),
    "no hook": (PLUGIN.replace("@hookimpl\n", ""), f"my_encoder.py: {BROKEN}TypeError"),
    "misspelt hook": (PLUGIN.replace("encoders", "encodes"), f"my_encoder.py: {BROKEN}PluginValidation"),
    "a text": (PLUGIN.replace(": Window}", ': "my_encoder:Window"}'), "must map names to classes"),
    "null bytes": (f"{PLUGIN}\0", "my_encoder.py"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a YAML and a plugin in one file, in which the tests stand."""
    write_tagger(tmp_path)
    monkeypatch.chdir(tmp_path)
    FILE.write_text(PLUGIN)
    return tmp_path


def with_plugin(command: str, *arguments: str | Path) -> CommandResult:
    return seqpipe(command, *arguments, "--plugin", "my_encoder.py")


def static_check(*overrides: str) -> CommandResult:
    return with_plugin("check", "tiny.yaml", "--static", *overrides)


def test_a_run_with_a_plugin_file_makes_a_bundle_that_answers_without_it(folder: Path) -> None:
    checked = succeed("check", "tiny.yaml", *SHORT, "--plugin", FILE)
    assert checked.err.rstrip().endswith("encoder=window train.epochs=1 --plugin=my_encoder.py")
    trained = succeed("train", "tiny.yaml", *SHORT, "--plugin", FILE)
    assert "seqpipe export runs/tiny --plugin my_encoder.py" in trained.err
    assert with_plugin("run", "tiny.yaml", *SHORT).code == 0
    assert with_plugin("export", "runs/tiny").code == 0
    assert with_plugin("evaluate", "runs/tiny", "--device", "cpu").code == 0
    FILE.unlink()
    answered = run_process("predict", "runs/tiny/bundle", folder=folder, stdin=b"Ada flew to Rome\n")
    assert (answered.code, answered.err.count("plugin")) == (0, 0), answered.err
    assert seqpipe("verify", "runs/tiny/bundle").code == 0
    assert seqpipe("evaluate", "runs/tiny/bundle").code == 0


def test_the_file_is_part_of_the_fingerprint_of_a_run() -> None:
    assert with_plugin("train", "tiny.yaml", *SHORT).code == 0
    old = hashlib.sha256(PLUGIN.encode()).hexdigest()
    assert old in Path("runs/tiny", STATE).read_text()
    assert with_plugin("train", "tiny.yaml", *SHORT).code == 0
    FILE.write_text(PLUGIN.replace("x + self", "2 * x + self"))
    new = hashlib.sha256(FILE.read_bytes()).hexdigest()
    changed = with_plugin("run", "tiny.yaml", *SHORT)
    assert changed.code == 2
    assert f"encoder window: my_encoder.py sha256:{old} -> my_encoder.py sha256:{new}" in changed.err
    assert with_plugin("train", "tiny.yaml", *SHORT, "--fresh").code == 0


def test_python_loads_an_edited_file_anew_in_the_same_process(folder: Path) -> None:
    first = Pipeline("tiny.yaml", SHORT, plugins=["my_encoder.py"])
    FILE.write_text(PLUGIN.replace("width: int = 3", "width: int = 5"))
    second = Pipeline("tiny.yaml", SHORT, plugins=[folder / FILE])
    widths = [pipeline.config.inputs[0].encoder[0].options["width"] for pipeline in (first, second)]
    assert widths == [3, 5]
    with pytest.raises(UsageError, match=r"must be a list of files, such as \['my_encoder.py'\]"):
        Pipeline("tiny.yaml", SHORT, plugins="my_encoder.py")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_file_is_an_error_with_its_file_and_line(fault: str) -> None:
    code, message = FAULTS[fault]
    FILE.write_text(code)
    done = static_check(*SHORT)
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert message in done.err, done.err
    FILE.write_text(PLUGIN)
    assert static_check(*SHORT).code == 0


def test_a_missing_file_is_an_error_with_its_cure() -> None:
    done = seqpipe("check", "tiny.yaml", "--static", "--plugin", "acme-conv")
    assert done.code == 2
    assert "acme-conv: no such file or directory; --plugin takes a Python file with a hook" in done.err
    assert seqpipe("check", "tiny.yaml", "--static", "--plugin", ".").code == 2


def test_messages_know_the_components_of_a_file() -> None:
    for override, name in (("encoder=windov", "window"), ("encoder={use: window, widht: 5}", "width")):
        done = static_check(override)
        assert (done.code, f"did you mean '{name}'?" in done.err) == (2, True)
    FILE.write_text(PLUGIN.replace("return x + ", "return x / 0 if mask else "))
    failing = with_plugin("check", "tiny.yaml", *SHORT)
    assert (failing.code, "encoder 'window' of my_encoder.py: `forward` raised" in failing.err) == (2, True)
    FILE.write_text(PLUGIN.replace('"window"', '"lstm"'))
    assert "write 'my_encoder.py/lstm' or 'seqpipe-nlp/lstm'" in static_check().err


def test_commands_that_build_or_describe_pipelines_take_the_file() -> None:
    assert "encoder    window " in with_plugin("plugins", "list").out
    assert "width   a whole number  3" in with_plugin("plugins", "show", "window").out
    assert "encoder.my_encoder.py.window" in with_plugin("schema").out
    assert "my_encoder.py" not in seqpipe("schema").out
    assert "window" not in seqpipe("plugins", "list").out


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


def test_vectors_are_distilled_for_words_that_a_reader_in_a_file_reads(folder: Path) -> None:
    FILE.write_text(READER)
    bert = checkpoint(folder / "bert", "bert", ["anna and paul flew away"] * 9)
    yaml = "data: {reader: upper, train: words.txt}\ntokenizer: words\nembedding: {use: lookup, dim: 4}\nhead: label\n"
    Path("words.yaml").write_text(yaml)
    Path("words.txt").write_text("anna paul\nflew away\n")
    arguments = (bert, "-o", "out.vec", "--pipeline", "words.yaml", "--dim", "2", "--device", "cpu")
    assert "no reader named 'upper'" in seqpipe("distill-vectors", *arguments).err
    succeed("distill-vectors", *arguments, "--plugin", FILE)


def test_no_yaml_loads_a_file() -> None:
    assert with_plugin("train", "tiny.yaml", *SHORT).code == 0
    for name in [name for name in sys.modules if name.startswith("plugin_file_")]:
        del sys.modules[name]
    for arguments in (("export", "runs/tiny"), ("vectors", "runs/tiny"), ("check", "runs/tiny/pipeline.yaml")):
        done = fail_with(2, "no encoder named 'window'", *arguments)
        assert "the run was made with my_encoder.py: give this file by --plugin" in done.err
    for key in ("plugins.files=[my_encoder.py]", "plugins.allow=[my_encoder.py]", "encoder.use=my_encoder.py/window"):
        assert seqpipe("check", "tiny.yaml", "--static", *SHORT, key).code == 2
    assert not any(name.startswith("plugin_file_") for name in sys.modules)
    assert with_plugin("vectors", "runs/tiny").code == 0
    assert Path("runs/tiny/vectors.vec").exists()


def test_installed_plugins_may_be_off_beside_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQPIPE_PLUGINS", "off")
    assert static_check(*SHORT, "plugins.allow=[]").code == 0


def test_two_files_of_one_name_are_refused(folder: Path) -> None:
    Path("more").mkdir()
    Path("more/my_encoder.py").write_text(PLUGIN.replace('"window"', '"other"'))
    with pytest.raises(PluginError, match=r"another plugin is called my_encoder.py too; rename one of them"):
        Plugins(files=[FILE, "more" / FILE])
    assert "window" in Plugins(files=[FILE, folder / FILE]).names("encoder")


def test_a_pipeline_that_is_needed_may_use_the_file_too() -> None:
    tiny: Any = parse_tree(Path("tiny.yaml").read_bytes(), "tiny.yaml").data
    tiny |= {"embedding": {"use": "lookup", "dim": 8}, "encoder": "window", "head": "tags"}
    Path("source.yaml").write_text(json.dumps({**tiny, "name": "source"}))
    needs = [{"path": "runs/source", "run": "source.yaml"}]
    embedding = {"use": "lookup", "dim": 8, "init": "runs/source"}
    Path("next.yaml").write_text(json.dumps({**tiny, "name": "next", "needs": needs, "embedding": embedding}))
    Pipeline("next.yaml", {"train.epochs": 1}, plugins=["my_encoder.py"]).train(device="cpu")
    assert Path("runs/source/bundle").exists()
    with pytest.raises(ConfigError, match="no encoder named 'window'"):
        Pipeline("next.yaml")
