"""A new package of every kind is installed as strangers' are, and its own tests pass at once."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from conftest import Install
from factory import Done, environ, process, seqpipe
from forks import Forks, write_client

from seqpipe.commands.plugins import LICENSES, write_package
from seqpipe.config.plugins import KINDS
from seqpipe.errors import UsageError

ROOT = Path(__file__).parents[3]
Client = Callable[..., str]
MOST_LINES = 60  # of Python in a package: hook, module and test


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a new package of each kind, toy-encoder and so on."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in KINDS:
        done = seqpipe("plugins", "new", f"toy-{kind}", "--kind", kind, "-o", folder)
        assert done.code == 0, done.err
        assert f"toy-{kind}/pyproject.toml" in done.err
    return folder


@pytest.fixture(scope="module")
def site(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has installed them all, from copies, since setuptools builds inside the sources."""
    folder = tmp_path_factory.mktemp("site")
    copies = shutil.copytree(packages, tmp_path_factory.mktemp("copies"), dirs_exist_ok=True)
    return pip_install(folder, *copies.iterdir())


def pip_install(target: Path, *packages: Path) -> Path:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    python("-m", "pip", "install", *options, "--target", target, *packages, folder=target)
    return target


def python(*arguments: str | Path, folder: Path, code: int = 0, **environment: str) -> str:
    """What a Python of its own writes; it has to end with this code."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, capture_output=True, text=True, env=environ(**environment)
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run_tests(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Runs a package's tests on what is installed in these folders, as `pytest` in its folder does."""
    command = tmp_path_factory.mktemp("client") / "pytest"
    write_client(command, Path(sys.executable).with_name("pytest"), Path(sys.prefix))

    def run(package: Path, *path: Path, code: int = 0) -> str:
        variables = environ(**forks.variables, PYTHONPATH=":".join(map(str, path)))
        options = ("-q", "-p", "no:cacheprovider", "--show-capture=no")
        done = subprocess.run([command, *options], cwd=package, capture_output=True, text=True, env=variables)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


# Every kind


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_of_a_new_package_pass_at_once(kind: str, packages: Path, site: Path, run_tests: Client) -> None:
    assert "2 passed" in run_tests(packages / f"toy-{kind}", site)


FAULTS = {
    "encoder": ("torch.where(mask[..., None], x, 0.0)", "x", "padding"),
    "reader": ('f"{path}:{number}"', 'f"{number}"', "where is file:line"),
    "tokenizer": (r"\d|[^\W\d]+", r"\w+", "test_each_digit_is_a_token"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_put_into_a_new_package_fails_its_tests(
    kind: str, packages: Path, site: Path, tmp_path: Path, run_tests: Client
) -> None:
    right, wrong, told = FAULTS[kind]
    module = shutil.copytree(site / f"toy_{kind}", tmp_path / f"toy_{kind}") / f"{kind}.py"
    text = module.read_text(encoding="utf-8")
    assert right in text
    module.write_text(text.replace(right, wrong), encoding="utf-8")
    assert told in run_tests(packages / f"toy-{kind}", tmp_path, site, code=1)


@pytest.mark.parametrize("kind", KINDS)
def test_module_and_test_are_short(kind: str, packages: Path) -> None:
    files = list((packages / f"toy-{kind}").rglob("*.py"))
    assert len(files) == 3
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= MOST_LINES


RULES = "E,F,W,I,B,C4,UP,SIM,RUF,PIE,PT,N"


@pytest.mark.parametrize(("width", "name"), [(88, "toy"), (120, "toy"), (120, "a-name-as-long-as-one-may-be-x")])
def test_new_code_is_as_ruff_wants_it(width: int, name: str, tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for kind in KINDS:
        folder = write_package(name, kind, tmp_path / kind)
        options = ("--isolated", "--no-cache", "--line-length", str(width))
        python("-m", "ruff", "check", *options, "--select", RULES, ".", folder=folder)
        python("-m", "ruff", "format", *options, "--check", ".", folder=folder)


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_is_a_right_pipeline(kind: str, packages: Path, site: Path) -> None:
    folder = packages / f"toy-{kind}"
    assert f"toy-{kind}" in re.split(r"\W*\s\W*", (folder / "example.yaml").read_text(encoding="utf-8"))
    done = process("check", "example.yaml", "--static", folder=folder, PYTHONPATH=str(site))
    assert done.code == 0, done.err


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_example_runs_and_its_bundle_needs_no_plugin(kind: str, packages: Path, site: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packages / f"toy-{kind}", tmp_path / "package")
    for command in ("check", "run"):
        done = process(command, "example.yaml", folder=folder, PYTHONPATH=str(site))
        assert done.code == 0, done.err
    bundle = f"runs/toy-{kind}/bundle"
    assert process("verify", bundle, folder=folder, SEQPIPE_PLUGINS="off").code == 0
    answered = process("predict", bundle, folder=folder, stdin=b"Ada flew to Rome\n", SEQPIPE_PLUGINS="off")
    assert json.loads(answered.out)


# What is installed


def listed(site: Path, *arguments: str) -> Done:
    return process("plugins", *arguments, folder=site, PYTHONPATH=str(site))


def test_installed_packages_are_listed_shown_and_checked_by_their_names(site: Path) -> None:
    listing = listed(site).out
    for kind in KINDS:
        assert re.search(rf"^{kind} +toy-{kind} +toy-{kind} 0\.1\.0$", listing, re.MULTILINE)
    assert "broken" not in listing
    assert "separator  '/', '|' or '_'" in listed(site, "show", "toy-reader").out
    checked = listed(site, "check", "toy-tokenizer")
    assert checked.code == 0, checked.out
    assert "checks passed" in checked.out


def test_listing_them_imports_no_torch(site: Path) -> None:
    modules = ", ".join(f"toy_{kind}" for kind in KINDS)
    code = (
        f"import sys, {modules}; from seqpipe.config.plugins import Plugins; Plugins(); print('torch' in sys.modules)"
    )
    assert python("-c", code, folder=site, PYTHONPATH=str(site)) == "False\n"


def test_only_the_module_is_installed(site: Path) -> None:
    assert sorted(path.name for path in site.iterdir() if "-" not in path.name) == sorted(f"toy_{k}" for k in KINDS)


def metadata(site: Path, module: str) -> Message:
    return Parser().parsestr((site / f"{module}-0.1.0.dist-info" / "METADATA").read_text(encoding="utf-8"))


def test_it_asks_for_what_it_needs(site: Path) -> None:
    from seqpipe import __version__

    for kind in KINDS:
        needed = metadata(site, f"toy_{kind}").get_all("Requires-Dist")
        torch = "" if kind in ("reader", "tokenizer") else "[train]"
        assert needed is not None
        assert needed[0] == f"seqpipe-nlp{torch}>={__version__}"


@pytest.mark.parametrize("license", LICENSES)
def test_its_licence_is_the_one_chosen(license: str, tmp_path: Path) -> None:
    folder = write_package("toy-licensed", "reader", tmp_path, license)
    told = metadata(pip_install(tmp_path, folder), "toy_licensed")
    assert told["License-Expression"] == (None if license == "none" else license)
    assert (folder / "LICENSE").exists() == (license != "none") == bool(told["License-File"])
    if license != "none":
        text = (folder / "LICENSE").read_text(encoding="utf-8")
        assert re.search(r"Copyright (\(c\) )?20\d\d,? The authors of toy-licensed", text)


def test_the_apache_licence_is_whole(tmp_path: Path) -> None:
    def without_owner(path: Path) -> list[str]:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if "Copyright 20" not in line]

    assert without_owner(write_package("toy", "reader", tmp_path) / "LICENSE") == without_owner(ROOT / "LICENSE")


# Names


WRONG = {
    "acme conv": "is not a distribution name; use letters",
    "-acme": "is not a distribution name",
    "": "is not a distribution name",
    "../acme": "is not a distribution name",
    "Größe": "is not a distribution name",
    "a" * 31: "is 31 characters long; at most 30",
    "3d-conv": "is not valid as a Python module or as text in a YAML; try 'my-3d-conv'",
    "class": "is not valid as a Python module",
    "null": "is not valid as a Python module or as text in a YAML",
    "True": "is not valid as a Python module or as text in a YAML",
    "seqpipe": "is seqpipe's own name; choose another, such as 'acme-seqpipe'",
    "seqpipe-nlp": "the distribution seqpipe-nlp",
    "Seqpipe.Plugins": "is seqpipe's own name",
    "json": "is a module of Python's standard library",
    "lstm": "is the name of encoder 'lstm' of seqpipe-nlp",
    "Char-CNN": "is the name of embedding 'char-cnn' of seqpipe-nlp",
    "numpy": "the distribution numpy 2",
    "yaml": "a module 'yaml' is already installed; choose another, such as 'acme-yaml'",
}


@pytest.mark.parametrize(("name", "words"), WRONG.items(), ids=list(WRONG))
def test_a_name_that_will_not_do_is_refused_with_the_reason(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        write_package(name, "encoder", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_strangers_component_is_refused(install: Install, tmp_path: Path) -> None:
    install(
        "acme-two", "from seqpipe.plugin import hookimpl\n@hookimpl\ndef register_heads(): return {'ordinal': 'a:B'}"
    )
    with pytest.raises(UsageError, match=r"'ordinal' is the name of head 'ordinal' of acme-two 1\.0"):
        write_package("ordinal", "head", tmp_path)


def test_kinds_and_licences_are_of_a_closed_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'encoders' is not a kind; did you mean 'encoder'\? \(there is: reader,"):
        write_package("toy", "encoders", tmp_path)
    with pytest.raises(UsageError, match=r"'mit' is not a licence.*there is: Apache-2.0, MIT, BSD-3-Clause, none"):
        write_package("toy", "encoder", tmp_path, "mit")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").write_text("mine")
    done = seqpipe("plugins", "new", "toy", "--kind", "head")
    assert (done.code, done.err) == (2, "toy exists already; choose another name, or another folder with --output\n")
    assert (tmp_path / "toy").read_text() == "mine"
    assert write_package("toy-two", "head") == Path("toy-two")


@pytest.mark.parametrize(
    ("name", "kind", "component"),
    [
        ("acme-gated.conv", "encoder", "AcmeGatedConv"),
        ("BERTish", "encoder", "BERTish"),
        ("tensor", "head", "TensorHead"),
        ("iterator", "reader", "IteratorReader"),
        ("value-error", "tokenizer", "ValueErrorTokenizer"),
    ],
)
def test_the_class_is_called_as_the_package_and_as_nothing_else(
    name: str, kind: str, component: str, tmp_path: Path
) -> None:
    folder = write_package(name, kind, tmp_path)
    module = name.lower().replace("-", "_").replace(".", "_")
    assert f"\nclass {component}" in (folder / module / f"{kind}.py").read_text(encoding="utf-8")
    assert f'"{name}": "{module}.{kind}:{component}"' in (folder / module / "__init__.py").read_text(encoding="utf-8")


def test_a_yaml_may_call_the_component_otherwise_than_pip_the_package(tmp_path: Path) -> None:
    done = seqpipe("plugins", "new", "acme-tools", "--kind", "encoder", "--use", "wide-window", "-o", tmp_path, "-q")
    assert (done.code, done.err) == (0, "")
    hooks = (tmp_path / "acme-tools/acme_tools/__init__.py").read_text(encoding="utf-8")
    assert '"wide-window": "acme_tools.encoder:WideWindow"' in hooks
    assert "{use: wide-window" in (tmp_path / "acme-tools/example.yaml").read_text(encoding="utf-8").replace(
        "encoder: wide-window", "encoder: {use: wide-window"
    )
    with pytest.raises(
        UsageError, match=r"'lstm' is the name of encoder 'lstm' of seqpipe-nlp .* or set its name in a YAML with --use"
    ):
        write_package("acme-more", "encoder", tmp_path, use="lstm")
    assert not (tmp_path / "acme-more").exists()
