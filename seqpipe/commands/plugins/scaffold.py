"""Write a template of a plugin package, with a passing test."""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
import sys
import time
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from string import Template

from seqpipe.config.plugins import BUILTIN, KINDS, Plugins
from seqpipe.config.yaml_text import resolve
from seqpipe.errors import UsageError, did_you_mean
from seqpipe.files import write, writing_folder
from seqpipe.version import VERSION

LICENSES = ("Apache-2.0", "MIT", "BSD-3-Clause", "none")

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST = 30  # the import of the class stays within a line
_WIDTH = 75  # of what stands between the braces in a line of 88
_PIPELINE = {  # the example's, where the new component does not stand
    "reader": "jsonl",
    "tokenizer": "words",
    "embedding": "{use: lookup, dim: 32}",
    "encoder": "{use: lstm, hidden: 32}",
    "head": "crf",
}


def write_package(
    name: str, kind: str, folder: Path | None = None, license: str = LICENSES[0], use: str | None = None
) -> Path:
    """Write a package with one component of that kind, its test and an example; return its folder, `folder`/`name`.

    Args:
        name: Of the distribution.
        kind: reader, tokenizer, embedding, encoder or head.
        folder: Where the package's folder goes; the current one by default.
        license: Apache-2.0, MIT, BSD-3-Clause or none.
        use: What a YAML calls the component; by default the distribution's name.

    Raises:
        UsageError: if there is no such kind or licence, the name will not do, or something is there already.
    """
    _refuse_unknown(kind, KINDS, "kind")
    _refuse_unknown(license, LICENSES, "licence")
    module = _module_name(name)
    place = (folder or Path()) / name
    if place.exists():
        raise UsageError(f"{place} is there already; choose another name, or another folder with --output")
    _check_free(name, module)
    _check_use(use or name)
    files = _files(name, use or name, module, kind, license)
    with writing_folder(place) as temporary:
        for path, text in files.items():
            (temporary / path).parent.mkdir(exist_ok=True)
            write(temporary / path, text)
    return place


def _refuse_unknown(value: str, choices: Sequence[str], what: str) -> None:
    if value not in choices:
        raise UsageError(f"{value!r} is no {what}{did_you_mean(value, choices)} (there is: {', '.join(choices)})")


def _module_name(name: str) -> str:
    """Return the module that a distribution of this name has; UsageError if the name will not do."""
    if not _NAME.fullmatch(name):
        rule = "letters, digits, '.', '_' and '-', the first and the last a letter or digit"
        raise UsageError(f"{name!r} is no name of a distribution; write a name of {rule}, such as acme-conv")
    if len(name) > _LONGEST:
        raise UsageError(f"{name!r} is {len(name)} characters long; at most {_LONGEST}, for every YAML has to say it")
    module = re.sub("[-.]", "_", name).lower()
    if not module.isidentifier() or keyword.iskeyword(module) or resolve(name) != name:
        raise UsageError(f"{name!r} can be no module of Python, or no text in a YAML; try 'my-{name}'")
    return module


def _check_free(name: str, module: str) -> None:
    """Raise UsageError if the name means something here already."""
    cure = f"choose another, such as 'acme-{name}'"
    if module in ("seqpipe", "seqpipe_plugins"):
        raise UsageError(f"{name!r} is seqpipe's own name; {cure}")
    if module in sys.stdlib_module_names:
        raise UsageError(f"{name!r} is a module of Python's standard library; {cure}")
    try:
        whose = f"the distribution {name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        if importlib.util.find_spec(module) is None:
            return
        whose = f"a module {module!r}"
    raise UsageError(f"{name!r}: there is {whose} here already; {cure}")


def _check_use(use: str) -> None:
    """Raise UsageError if a YAML could not call a component so, or calls another one so."""
    _module_name(use)
    for offer in Plugins().offers:
        if offer.name.lower() == use.lower():
            whose = f"{offer.distribution} {offer.version}"
            cure = f"choose another, such as 'acme-{use}', or give --use its name in a YAML"
            raise UsageError(f"{use!r} is the name of {offer.kind} {offer.name!r} of {whose}; {cure}")


def _files(name: str, use: str, module: str, kind: str, license: str) -> dict[str, str]:
    """Return the text of each file, by its path in the package's folder."""
    data = "example.txt" if kind == "reader" else "example.jsonl"
    fields = {**_pipeline_fields(use, kind), **_package_fields(name, use, module, kind, license), "data": data}
    sources = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        f"{module}/__init__.py": "__init__.py",
        f"{module}/{kind}.py": f"{kind}.py",
        f"tests/test_{module}.py": f"{kind}_test.py",
        "example.yaml": "example.yaml",
        data: data,
    }
    if license != "none":
        sources["LICENSE"] = f"licenses/{license}"
    return {path: Template(_template(source)).substitute(fields) for path, source in sources.items()}


def _pipeline_fields(use: str, kind: str) -> dict[str, str]:
    """Return the components of the example's pipeline, for the templates."""
    components = {**_PIPELINE, kind: use}
    if kind == "reader":
        components["head"] = "{use: tags, scheme: none}"
    return components


def _package_fields(name: str, use: str, module: str, kind: str, license: str) -> dict[str, str]:
    """Return what the templates say about the package."""
    kind_with_article = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
    needs_torch = kind not in ("reader", "tokenizer")
    has_license = license != "none"
    component = _class_name(use, kind)
    offer = f'"{use}": "{module}.{kind}:{component}"'
    return {
        "name": name,
        "use": use,
        "module": module,
        "kind": kind,
        "a_kind": kind_with_article,
        "A_kind": kind_with_article.capitalize(),
        "component": component,
        "table": f"{{{offer}}}" if len(offer) <= _WIDTH else f"{{\n        {offer},\n    }}",
        "requirement": f"{BUILTIN}{'[train]' if needs_torch else ''}>={VERSION}",
        "license_lines": f'license = "{license}"\nlicense-files = ["LICENSE"]\n' if has_license else "",
        "license_note": f"{license}; see LICENSE." if has_license else "None yet. Choose one before you publish.",
        "year": time.strftime("%Y"),
    }


def _class_name(name: str, kind: str) -> str:
    """Return the name in one word, for the class; the kind is appended where the templates use that word already."""
    word = "".join(part[:1].upper() + part[1:] for part in re.split("[-._]+", name))
    used = set(re.findall(r"\w+", _template(f"{kind}.py") + _template(f"{kind}_test.py")))
    return word + kind.capitalize() if word in used or word in dir(builtins) else word


def _template(name: str) -> str:
    return (resources.files("seqpipe.commands.plugins") / "templates" / f"{name}.txt").read_text(encoding="utf-8")
