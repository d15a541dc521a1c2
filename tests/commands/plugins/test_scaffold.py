"""A new package of every kind is installed as strangers' are, and its own tests pass at once."""

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
from forked_commands import Forks, write_client
from tiny_pipelines import environ, run_process, seqpipe, succeed

from seqpipe import __version__
from seqpipe.commands.plugins import LICENSES, write_package
from seqpipe.config.plugins import KINDS
from seqpipe.errors import UsageError

ROOT = Path(__file__).parents[3]
Client = Callable[..., str]
MOST_LINES = 60  # of Python in a package: hook, module and test
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a new package of each kind, toy-encoder and so on."""
    folder = tmp_path_factory.mktemp("packages")
    for kind in KINDS:
        done = succeed("plugins", "new", f"toy-{kind}", "--kind", kind, "-o", folder)
        assert f"toy-{kind}/pyproject.toml" in done.err
    return folder


@pytest.fixture(scope="module")
def site(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed them all, from copies, since setuptools builds inside the sources."""
    copies = shutil.copytree(packages, tmp_path_factory.mktemp("copies"), dirs_exist_ok=True)
    return pip_install(tmp_path_factory.mktemp("site"), *copies.iterdir())


def pip_install(target: Path, *packages: Path) -> Path:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    python("-m", "pip", "install", *options, "--target", target, *packages, folder=target)
    return target


def python(*arguments: str | Path, folder: Path, **environment: str) -> str:
    """The output of a Python of its own, which has to succeed."""
    return run([sys.executable, *map(str, arguments)], folder, environment)


def run(command: list[str], folder: Path, environment: dict[str, str], code: int = 0) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environ(**environment))
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run_tests(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Client:
    """Runs a package's tests on what is installed in these folders, as `pytest` in its folder does."""
    client = tmp_path_factory.mktemp("client") / "pytest"
    write_client(client, Path(sys.executable).with_name("pytest"), Path(sys.prefix))

    def run_client(package: Path, *path: Path, code: int = 0) -> str:
        variables = {**forks.variables, "PYTHONPATH": ":".join(map(str, path))}
        return run([str(client), "-q", "-p", "no:cacheprovider", "--show-capture=no"], package, variables, code)

    return run_client


# Every kind


@every_kind
def test_a_new_package_is_short_and_its_tests_pass(kind: str, packages: Path, site: Path, run_tests: Client) -> None:
    package = packages / f"toy-{kind}"
    assert "2 passed" in run_tests(package, site)
    files = list(package.rglob("*.py"))
    assert len(files) == 3
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= MOST_LINES


FAULTS = {
    "encoder": ("torch.where(mask[..., None], x, 0.0)", "x", "padding"),
    "reader": ('f"{path}:{number}"', 'f"{number}"', "where is file:line"),
    "tokenizer": (r"\d|[^\W\d]+", r"\w+", "test_each_digit_is_a_token"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_package_with_a_fault_fails(kind: str, packages: Path, site: Path, tmp_path: Path, run_tests: Client) -> None:
    right, wrong, message = FAULTS[kind]
    module = shutil.copytree(site / f"toy_{kind}", tmp_path / f"toy_{kind}") / f"{kind}.py"
    text = module.read_text(encoding="utf-8")
    assert right in text
    module.write_text(text.replace(right, wrong), encoding="utf-8")
    assert message in run_tests(packages / f"toy-{kind}", tmp_path, site, code=1)


RULES = "E,F,W,I,B,C4,UP,SIM,RUF,PIE,PT,N"


@pytest.mark.parametrize(("width", "name"), [(88, "toy"), (120, "toy"), (120, "a-name-as-long-as-one-may-be-x")])
def test_new_code_is_as_ruff_wants_it(width: int, name: str, tmp_path: Path) -> None:
    pytest.importorskip("ruff")
    for kind in KINDS:
        folder = write_package(name, kind, tmp_path / kind)
        options = ("--isolated", "--no-cache", "--line-length", str(width))
        python("-m", "ruff", "check", *options, "--select", RULES, ".", folder=folder)
        python("-m", "ruff", "format", *options, "--check", ".", folder=folder)


@every_kind
def test_the_example_is_a_pipeline(kind: str, packages: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(site))
    folder = packages / f"toy-{kind}"
    assert f"toy-{kind}" in re.split(r"\W*\s\W*", (folder / "example.yaml").read_text(encoding="utf-8"))
    succeed("check", "example.yaml", "--static", folder=folder)


@pytest.mark.long
@every_kind
def test_the_example_runs_and_its_bundle_needs_no_plugin(kind: str, packages: Path, site: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(packages / f"toy-{kind}", tmp_path / "package")
    for command in ("check", "run"):
        done = run_process(command, "example.yaml", folder=folder, PYTHONPATH=str(site))
        assert done.code == 0, done.err
    bundle = f"runs/toy-{kind}/bundle"
    assert run_process("verify", bundle, folder=folder, SEQPIPE_PLUGINS="off").code == 0
    answered = run_process("predict", bundle, folder=folder, stdin=b"Ada flew to Rome\n", SEQPIPE_PLUGINS="off")
    assert json.loads(answered.out)


# What is installed


def test_only_the_modules_are_installed_and_listing_them_imports_no_torch(site: Path) -> None:
    modules = sorted(f"toy_{kind}" for kind in KINDS)
    assert sorted(path.name for path in site.iterdir() if "-" not in path.name) == modules
    code = f"import sys, {', '.join(modules)}; from seqpipe.config.plugins import Plugins; Plugins()"
    assert python("-c", f"{code}; print('torch' in sys.modules)", folder=site, PYTHONPATH=str(site)) == "False\n"


def metadata(site: Path, module: str) -> Message:
    return Parser().parsestr((site / f"{module}-0.1.0.dist-info" / "METADATA").read_text(encoding="utf-8"))


def test_a_package_requires_torch_if_it_needs_it(site: Path) -> None:
    for kind in KINDS:
        extra = "" if kind in ("reader", "tokenizer") else "[train]"
        required = metadata(site, f"toy_{kind}").get_all("Requires-Dist", [])
        assert required[0] == f"seqpipe-nlp{extra}>={__version__}"


@pytest.mark.parametrize("license", LICENSES)
def test_its_licence_is_the_one_chosen(license: str, tmp_path: Path) -> None:
    folder = write_package("toy-licensed", "reader", tmp_path, license)
    installed = metadata(pip_install(tmp_path, folder), "toy_licensed")
    is_licensed = license != "none"
    assert installed["License-Expression"] == (license if is_licensed else None)
    assert (folder / "LICENSE").exists() == is_licensed == bool(installed["License-File"])
    if is_licensed:
        text = (folder / "LICENSE").read_text(encoding="utf-8")
        assert re.search(r"Copyright (\(c\) )?20\d\d,? The authors of toy-licensed", text)


def test_the_apache_licence_is_whole(tmp_path: Path) -> None:
    texts = [write_package("toy", "reader", tmp_path) / "LICENSE", ROOT / "LICENSE"]
    lines = [[line for line in file.read_text().splitlines() if "Copyright 20" not in line] for file in texts]
    assert lines[0] == lines[1]


# Names


WRONG = [
    *((name, "is not a distribution name; use letters") for name in ("acme conv", "-acme", "", "../acme", "Größe")),
    *((name, "is not valid as a Python module or as text in a YAML") for name in ("class", "null", "True")),
    ("3d-conv", "is not valid as a Python module or as text in a YAML; try 'my-3d-conv'"),
    ("a" * 31, "is 31 characters long; at most 30"),
    *((name, "is seqpipe's own name; choose another, such as 'acme-") for name in ("seqpipe", "Seqpipe.Plugins")),
    ("seqpipe-nlp", "the distribution seqpipe-nlp"),
    ("numpy", "the distribution numpy 2"),
    ("json", "is a module of Python's standard library"),
    ("lstm", "is the name of encoder 'lstm' of seqpipe-nlp"),
    ("Char-CNN", "is the name of embedding 'char-cnn' of seqpipe-nlp"),
    ("yaml", "a module 'yaml' is already installed; choose another, such as 'acme-yaml'"),
]


@pytest.mark.parametrize(("name", "message"), WRONG)
def test_an_invalid_name_is_refused_with_the_reason(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        write_package(name, "encoder", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_strangers_component_is_refused(install: Install, tmp_path: Path) -> None:
    code = "from seqpipe.plugin import hookimpl\n@hookimpl\ndef register_heads(): return {'ordinal': 'a:B'}"
    install("acme-two", code)
    with pytest.raises(UsageError, match=r"'ordinal' is the name of head 'ordinal' of acme-two 1\.0"):
        write_package("ordinal", "head", tmp_path)


def test_kinds_and_licences_are_of_a_closed_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'encoders' is not a kind; did you mean 'encoder'\? \(there is: reader,"):
        write_package("toy", "encoders", tmp_path)
    with pytest.raises(UsageError, match=r"'mit' is not a licence.*there is: Apache-2.0, MIT, BSD-3-Clause, none"):
        write_package("toy", "encoder", tmp_path, "mit")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_class_is_named_as_the_package(name: str, kind: str, component: str, tmp_path: Path) -> None:
    folder = write_package(name, kind, tmp_path)
    module = name.lower().replace("-", "_").replace(".", "_")
    assert f"\nclass {component}" in (folder / module / f"{kind}.py").read_text(encoding="utf-8")
    assert f'"{name}": "{module}.{kind}:{component}"' in (folder / module / "__init__.py").read_text(encoding="utf-8")


def test_a_yaml_may_call_the_component_otherwise_than_pip_the_package(tmp_path: Path) -> None:
    done = seqpipe("plugins", "new", "acme-tools", "--kind", "encoder", "--use", "wide-window", "-o", tmp_path, "-q")
    assert (done.code, done.err) == (0, "")
    hooks = (tmp_path / "acme-tools/acme_tools/__init__.py").read_text(encoding="utf-8")
    assert '"wide-window": "acme_tools.encoder:WideWindow"' in hooks
    example = (tmp_path / "acme-tools/example.yaml").read_text(encoding="utf-8")
    assert re.search(r"encoder: (\{use: )?wide-window", example)
    refusal = r"'lstm' is the name of encoder 'lstm' of seqpipe-nlp .* or set its name in a YAML with --use"
    with pytest.raises(UsageError, match=refusal):
        write_package("acme-more", "encoder", tmp_path, use="lstm")
    assert not (tmp_path / "acme-more").exists()
