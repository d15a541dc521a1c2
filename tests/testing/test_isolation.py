import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from readers_and_tokenizers import Lines

from seqpipe.testing import check_reader
from seqpipe.testing.graphs import session_of
from seqpipe.testing.isolation import check_import, watched_call
from seqpipe.testing.report import FaultError, NotApplicableError, Subject


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("planted_sleep", "import time; time.sleep(1.3)", r"takes \d+\.\d s to import; the limit is 1 s"),
        ("planted_torch", "import torch", "imports torch"),
        ("planted_print", "print('hello')", "prints when it is imported: 'hello'"),
        ("planted_error", "import nothing_of_that_name", "cannot be imported in a new Python: ModuleNotFoundError"),
        ("planted_exit", "raise SystemExit(3)", "cannot be imported in a new Python: SystemExit: 3"),
        ("planted_end", "import os; os._exit(3)", "Python ended with code 3"),
    ],
)
def test_a_costly_import_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, message: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(FaultError, match=message):
        check_import(name, needs_torch=False)


def test_torch_is_no_cost_where_it_is_needed_and_onnxruntime_may_be_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sound_torch.py").write_text("import torch, seqpipe")
    check_import("sound_torch", needs_torch=True)
    with pytest.raises(NotApplicableError, match="__main__"):
        check_import("__main__", needs_torch=False)
    monkeypatch.setitem(sys.modules, "seqpipe.runtime.onnx_runtime", None)
    with pytest.raises(NotApplicableError, match="onnxruntime is not installed"):
        session_of(b"")


def test_a_reader_whose_module_imports_torch_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "import torch\nfrom readers_and_tokenizers import Lines as Base\nclass Lines(Base): pass\n"
    (tmp_path / "planted_reader.py").write_text(code)
    cls = importlib.import_module("planted_reader").Lines
    with pytest.raises(AssertionError, match="import: failed: planted_reader imports torch"):
        check_reader(cls, "a\tb\n", [{"text": "a", "label": "b"}])


def test_readers_and_tokenizers_are_checked_without_torch() -> None:
    code = (
        "import sys\nfrom readers_and_tokenizers import *\nfrom seqpipe.testing import *\n"
        "check_reader(Lines, CONTENT, EXPECTED)\ncheck_tokenizer(Blanks)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"], check=True)


def test_only_the_code_of_the_component_is_watched_and_only_meanwhile(tmp_path: Path) -> None:
    subject = Subject("reader", Lines, {})
    path = tmp_path / "a.txt"
    path.write_text("a\tb\n")
    watched_call(subject, lambda: path.read_text())  # the test reads it, not the component
    with pytest.raises(FaultError, match=r"reads the file .*a\.txt"):
        watched_call(subject, lambda: list(Lines().read(path)))
    watched_call(subject, lambda: list(Lines().read(path)), path)
    list(Lines().read(path))
