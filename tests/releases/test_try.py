"""The two commands of the README, `python3 try.py` and `python3 try.py tests`, with a small project for seqpipe."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository_scripts import PROJECT, ROOT
from skipped import lacking_packages, main

pytestmark = pytest.mark.nightly("try.py", "pyproject.toml", "tests/*")

TOY_PROJECT = """
[project]
name = "seqpipe-nlp"
version = "1"
optional-dependencies = {cpu = [], report = [], serve = [], test = [], train = []}
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
# The smallest build backend (PEP 517, PEP 660): a wheel whose .pth file names the checkout.
BACKEND = """
import os, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "seqpipe_nlp-1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("seqpipe_nlp.pth", os.getcwd())
        extras = "".join(f"Provides-Extra: {extra}\\n" for extra in ("cpu", "report", "serve", "test", "train"))
        metadata = f"Metadata-Version: 2.1\\nName: seqpipe-nlp\\nVersion: 1\\n{extras}"
        wheel.writestr("seqpipe_nlp-1.dist-info/METADATA", metadata)
        wheel.writestr("seqpipe_nlp-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\nTag: py3-none-any\\n")
        wheel.writestr("seqpipe_nlp-1.dist-info/RECORD", "")
    return name
"""
MODULE = "import os, sys; print({name!r}, *sys.argv[1:], os.environ.get('PYTHONPATH')); sys.exit({code})"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose `seqpipe` and `pytest` print what they are asked to do; this pytest finds a failing test."""
    folder = tmp_path / "a checkout"
    (folder / "seqpipe").mkdir(parents=True)
    shutil.copy(ROOT / "try.py", folder)
    (folder / "pyproject.toml").write_text(TOY_PROJECT)
    (folder / "constraints.txt").write_text("")
    (folder / "backend.py").write_text(BACKEND)
    (folder / "seqpipe" / "__main__.py").write_text(MODULE.format(name="seqpipe", code=0))
    (folder / "pytest.py").write_text(MODULE.format(name="pytest", code=1))
    return folder


def typed(folder: Path, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run try.py from another folder, after a line of Python."""
    code = f"import runpy, sys\n{before}\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(folder / "try.py"), *arguments]
    return subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=200)


def test_the_first_call_installs_and_trains_and_the_second_installs_nothing(checkout: Path) -> None:
    first = typed(checkout, before="import os; os.environ['PYTHONPATH'] = 'elsewhere'")
    second = typed(checkout)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    for call in (first, second):
        assert "seqpipe run pipelines/ner.yaml None\n" in call.stdout  # packages of a PYTHONPATH are not in .venv
        assert "seqpipe serve runs/ner/bundle" in call.stdout
    assert "Installing" in first.stdout
    assert "Installing" not in second.stdout
    (checkout / "constraints.txt").write_text("numpy==2.4.6\n")  # as after `git pull`
    assert "Installing" in typed(checkout).stdout
    moved = typed(checkout.rename(checkout.with_name("moved")))  # the installation names the old folder
    assert (moved.returncode, "Installing" in moved.stdout) == (0, True), moved.stderr


def test_the_tests_get_the_options_of_pytest_and_their_exit_code_is_that_of_the_command(checkout: Path) -> None:
    done = typed(checkout, "tests", "-k", "one or two")
    assert "pytest -k one or two None\n" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.version_info = (3, 9, 2)", "seqpipe needs Python 3.11 or newer, and this is 3.9.2: start try.py with a "),
        ("sys.modules['ensurepip'] = None", "apt install python3-venv"),
    ],
)
def test_a_python_that_will_not_do_gets_one_sentence_before_anything_is_written(
    before: str, message: str, checkout: Path
) -> None:
    files = sorted(checkout.rglob("*"))
    done = typed(checkout, before=before)
    assert done.returncode == 1
    assert message in done.stderr
    assert (done.stderr.count("\n"), done.stdout) == (1, "")
    assert sorted(checkout.rglob("*")) == files


def test_an_unknown_word_is_refused_with_the_usage(checkout: Path) -> None:
    done = typed(checkout, "test")
    assert (done.returncode, done.stderr) == (1, "usage: python3 try.py, or python3 try.py tests [OPTIONS OF PYTEST]\n")
    assert not (checkout / ".venv").exists()


# The tests that were skipped


def test_packages_that_are_not_here_are_named_as_pip_takes_them() -> None:
    reasons = ["could not import 'axe_playwright_python.sync': No", "needs Chromium", "could not import 'pandas'"]
    assert lacking_packages(reasons) == ["axe-playwright-python", "pandas"]


def test_every_package_that_a_test_may_lack_is_one_of_the_extra_for_development() -> None:
    """So that the last lines of pytest never name a package of a stranger; tests marked `long` may need others."""
    extras = PROJECT["optional-dependencies"].values()
    known = {canonicalize_name(Requirement(text).name) for extra in extras for text in extra}
    modules = [
        module
        for path in (ROOT / "tests").rglob("*.py")
        for module in re.findall(r'importorskip\("([\w.]+)"', path.read_text(encoding="utf-8"))
    ]
    assert len(modules) > 30
    lacking = {*lacking_packages([f"could not import '{module}'" for module in modules])}
    assert lacking - known == {"atheris", "jupyter-client", "librosa", "nbformat", "spacy"}


@pytest.mark.parametrize(("reason", "code"), [("could not import 'pandas'", 1), ("has CUDA", 1), ("needs strace", 0)])
def test_a_test_that_ran_nowhere_is_an_error_unless_it_needs_a_program(
    reason: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v" / "seqpipe").mkdir(parents=True)
    (tmp_path / "v" / "seqpipe" / "skipped").write_text(f'{{"tests/test_a.py::test_b": "{reason}"}}')
    assert main("check", str(tmp_path)) == code
    assert main("list", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"ran nowhere: tests/test_a.py::test_b: {reason}\ntests/test_a.py::test_b\n"
