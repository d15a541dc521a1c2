"""The wheel, installed with the lowest versions that it allows and without the source tree, answers as it should."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from email import message_from_string
from pathlib import Path

import pytest
from conftest import SURE
from doc_pages import ROOT
from packaging.requirements import Requirement

from seqpipe.version import VERSION

PATHS = ("pyproject.toml", "requirements/*", "constraints.txt", ".ci/build", "tests/releases/*")
pytestmark = pytest.mark.nightly(*PATHS)

PACKAGES = {"seqpipe": "seqpipe", "seqpipe_plugins": "plugins/seqpipe_plugins"}  # name: folder
NOT_CODE = (
    "commands/examples.txt",
    "commands/keys.json",
    "commands/templates/deploy/*.txt",
    "commands/templates/plugin/*.txt",
    "commands/templates/plugin/licenses/*.txt",
    "init/templates/*.yaml",
    "explain/page.html",
    "export/card.txt",
    "report/page.css",
    "report/page.html.jinja",
    "report/plots.mplstyle",
    "serve/page/*",
    "py.typed",
)
ANSWER = [
    {"entity_group": "person", "score": SURE, "word": "Anna", "start": 0, "end": 4},
    {"entity_group": "city", "score": round(SURE**2, 6), "word": "New York", "start": 8, "end": 16},
]


def run(*command: str | Path, cwd: Path, text: str = "") -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, input=text, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that no file of an earlier build gets into it."""
    tree, folder = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree)
    for name in PACKAGES.values():
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation")
    run(*pip, "-w", folder, tree, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def lowest(requirements: Iterable[str], extra: str) -> list[str]:
    """The requirements that hold with the extra, each pinned to the lowest version that it allows."""
    pins = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            (bound,) = (spec.version for spec in requirement.specifier if spec.operator == ">=")
            pins.append(f"{requirement.name}=={bound}")
    return pins


def test_the_lowest_versions_are_those_of_the_requirements_that_hold() -> None:
    requirements = ["numpy>=2.0", "torch<3,>=2.13; extra == 'train'", "onnxruntime<2,>=1.23; extra == 'cpu'"]
    assert lowest(requirements, "cpu") == ["numpy==2.0", "onnxruntime==1.23"]
    with pytest.raises(ValueError, match="unpack"):
        lowest(["numpy"], "cpu")


def test_the_wheel_holds_every_module_and_the_files_beside_them(wheel: Path) -> None:
    expected = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for pattern in ("**/*.py", "**/*.pyi", *NOT_CODE)
        for path in (ROOT / folder).glob(pattern)
    }
    assert {"seqpipe/py.typed", "seqpipe_plugins/py.typed"} <= expected
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == expected


# Newer Pythons have no wheels of the lowest versions.
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="needs the oldest Python, 3.11")
@pytest.mark.index
def test_the_wheel_answers_with_the_lowest_versions_and_no_source_tree(
    wheel: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(name).decode("utf-8"))
    pins = lowest(metadata.get_all("Requires-Dist", []), "cpu")
    assert len(pins) > 5

    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    bin = tmp_path / "venv" / "bin"
    pip = (sys.executable, "-m", "pip", "--python", bin / "python", "install", "-q", "--only-binary", ":all:")
    run(*pip, *pins, f"{wheel}[cpu]", cwd=tmp_path)

    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    where = "import seqpipe, importlib.util as u; print(seqpipe.__file__, u.find_spec('torch'))"
    file, torch = run(bin / "python", "-c", where, cwd=tmp_path).split()
    assert Path(file).is_relative_to(tmp_path / "venv")
    assert torch == "None"
    assert VERSION in run(bin / "seqpipe", "--version", cwd=tmp_path)
    assert "lstm" in run(bin / "seqpipe", "plugins", cwd=tmp_path)
    run(bin / "seqpipe", "verify", bundle, cwd=tmp_path)
    answer = json.loads(run(bin / "seqpipe", "predict", bundle, cwd=tmp_path, text="Anna in New York\n"))
    assert answer == ANSWER


def test_the_wheel_does_what_the_readme_types_in_an_empty_folder(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQPIPE_REPORT")  # off in other tests
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    bin, folder = tmp_path / "venv" / "bin", tmp_path / "empty"
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])  # its .pth files are not read
    pip = (sys.executable, "-m", "pip", "--python", bin / "python", "install", "-q", "--no-deps", "--no-index")
    run(*pip, "--force-reinstall", wheel, cwd=tmp_path)
    folder.mkdir()
    (table,) = re.findall(r'```csv title="requests.csv"\n(.*?)```', (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    (folder / "requests.csv").write_text(table)

    def typed(command: str, text: str = "") -> str:
        program, *arguments = command.split()
        return run(bin / program, *arguments, cwd=folder, text=text)

    where = "import seqpipe, seqpipe_plugins, sys; print(seqpipe.__file__, seqpipe_plugins.__file__, *sys.path)"
    (folder / "where.py").write_text(where)
    own, plugins, *paths = typed("python where.py").split()
    assert Path(own).is_relative_to(packages)
    assert Path(plugins).is_relative_to(packages)
    assert {str(ROOT), str(ROOT / "plugins")}.isdisjoint(paths)
    assert typed("python -m seqpipe --version") == typed("seqpipe --version")
    commands = re.findall(r"^  ([a-z-]+)  +\w", typed("seqpipe --help"), re.M)
    assert {"init", "run", "predict", "deploy", "schema"} <= {*commands}
    for command in commands:
        typed(f"seqpipe {command} --help")
    typed("seqpipe init requests.csv")
    typed("seqpipe run requests.yaml train.epochs=2")
    typed("seqpipe export runs/requests -o exported")
    assert json.loads(typed("seqpipe predict exported", "where is it\n"))["label"] in ("account", "delivery", "refund")
    typed("seqpipe plugins new acme-conv --kind encoder")
    for target in ("docker", "kserve --image example.com/a:1", "systemd", "triton"):
        typed(f"seqpipe deploy {target} exported -o {target.split()[0]}")
    assert json.loads(typed("seqpipe schema")) == json.loads((ROOT / "pipelines/schema.json").read_bytes())
    assert {"report.html", "bundle"} <= {path.name for path in (folder / "runs/requests").iterdir()}
