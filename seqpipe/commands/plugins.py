"""`seqpipe plugins`: list the installed components, show one, start a package of components, check it."""

from __future__ import annotations

import builtins
import keyword
import re
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from seqpipe.commands.help import Command
from seqpipe.commands.options import Json, PluginFiles, Quiet, make_console, parse_decode_options, print_json
from seqpipe.console import text_table
from seqpipe.errors import PluginError, UsageError, did_you_mean
from seqpipe.version import VERSION

if TYPE_CHECKING:
    from seqpipe.config.plugins import Plugins

LICENSES = ("Apache-2.0", "MIT", "BSD-3-Clause", "none")

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_NAME_CHARS = 30  # the import of the class stays within a line
_WIDTH = 75  # maximum width between the braces in a line of 88
_PIPELINE = {  # the components of the example, except the new one
    "reader": "jsonl",
    "tokenizer": "words",
    "embedding": "{use: lookup, dim: 32}",
    "encoder": "{use: lstm, hidden: 32}",
    "head": "crf",
}

app = typer.Typer(help="Installed components, their options, and broken plugins.", rich_markup_mode=None)


@app.callback()
def list_by_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_all()


@app.command("list", cls=Command)
def list_all(plugins: PluginFiles = None) -> None:
    """List every component and every broken plugin."""
    from seqpipe.config.plugins import Plugins, installed_names

    typer.echo(list_components(Plugins(files=plugins or ())))
    installed_names(anew=True)  # for tab completion


@app.command("show", cls=Command)
def show_options(
    name: Annotated[str, typer.Argument(help="A component, such as lstm, or encoder/lstm if the name is ambiguous.")],
    plugins: PluginFiles = None,
) -> None:
    """Show the options of a component with types, defaults and meaning."""
    from seqpipe.config.plugins import Plugins

    typer.echo(show_component(name, Plugins(files=plugins or ())))


@app.command(cls=Command)
def new(
    name: Annotated[str, typer.Argument(help="Name of the distribution, such as acme-conv.")],
    kind: Annotated[str, typer.Option(help="encoder, head, embedding, tokenizer or reader.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder in which to create the package; default: the current folder."),
    ] = None,
    use: Annotated[
        str | None, typer.Option(help="Name of the component in a YAML; default: the name of the distribution.")
    ] = None,
    license: Annotated[str, typer.Option(help="Apache-2.0, MIT, BSD-3-Clause or none.")] = "Apache-2.0",
    quiet: Quiet = False,
) -> None:
    """Write a template of a plugin package, with a passing test."""
    folder = write_package(name, kind, output, license, use)
    console = make_console(quiet)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        console.say(f"wrote {path}")
    console.say(f"\nnext: pip install -e {folder} && pytest {folder}")


@app.command("check", cls=Command)
def check_plugin(
    package: Annotated[str, typer.Argument(help="An installed distribution, such as acme-conv.")],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="OPTION=VALUE", help="An option for the components that have it; may be repeated."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the test kit on every component of an installed package."""
    from seqpipe.testing import check_package, table

    reports = check_package(package, parse_decode_options(sets or [], {}, {}, "--set"))
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        typer.echo(table(reports))
    if any(finding.state == "failed" for report in reports for finding in report.findings):
        raise typer.Exit(5)


def list_components(plugins: Plugins | None = None) -> str:
    """Return every component with its distribution, then every broken plugin with its reason."""
    from seqpipe.config.plugins import Plugins

    plugins = plugins or Plugins()
    rows = [(offer.kind, offer.name, f"{offer.distribution} {offer.version}") for offer in plugins.offers]
    lines = text_table([("kind", "use", "from"), *rows])
    counts = Counter((offer.kind, offer.name) for offer in plugins.offers)
    ambiguous = {name for (_, name), count in counts.items() if count > 1}
    lines += [f"\n{name!r} is offered more than once: write `use: distribution/{name}`" for name in sorted(ambiguous)]
    lines += [f"\nnote: {note}" for note in plugins.notes]
    lines += [f"\n{message}" for message in plugins.left_out]
    lines += [f"\nbroken: {b.distribution} {b.version} ({b.entry_point}): {b.reason}" for b in plugins.broken]
    return "\n".join([*lines, "\nnext: seqpipe plugins show NAME"])


def show_component(name: str, plugins: Plugins | None = None) -> str:
    """Return the options of every component of that name: type, default, meaning."""
    from seqpipe.config.plugins import KINDS, Plugins
    from seqpipe.config.signature import option_rows

    plugins = plugins or Plugins()
    kind, _, use = name.partition("/") if name.partition("/")[0] in KINDS else ("", "", name)
    offers = [o for o in plugins.offers if use in (o.name, f"{o.distribution}/{o.name}") and kind in ("", o.kind)]
    if not offers:
        names = {offer.name for offer in plugins.offers}
        raise PluginError(
            f"no component named {name!r}{did_you_mean(name, names)} (there is: {', '.join(sorted(names))})"
        )
    shown = []
    for offer in offers:
        component = offer.load()
        summary = (component.__doc__ or "").strip().split("\n\n")[0]
        rows = [("option", "type", "default", ""), *option_rows(component)]
        head = f"{offer.kind} {offer.name} ({offer.distribution} {offer.version})\n{summary}\n"
        shown.append("\n".join([head, *text_table(rows)]))
    return "\n\n".join(shown)


def write_package(
    name: str, kind: str, folder: Path | None = None, license: str = LICENSES[0], use: str | None = None
) -> Path:
    """Write a package with one component of that kind, its test and an example; return its folder, `folder`/`name`.

    `use` is the component's name in a YAML, by default that of the distribution. UsageError for an unknown kind or
    licence, an invalid name, or an existing folder.
    """
    from seqpipe.config.plugins import KINDS, Plugins
    from seqpipe.files import write, writing_folder

    for value, known, what in ((kind, KINDS, "kind"), (license, LICENSES, "licence")):
        if value not in known:
            raise UsageError(f"{value!r} is not a {what}{did_you_mean(value, known)} (there is: {', '.join(known)})")
    module = _module_name(name)
    place = (folder or Path()) / name
    if place.exists():
        raise UsageError(f"{place} exists already; choose another name, or another folder with --output")
    _check_free(name, module)
    use = use or name
    _module_name(use)
    for offer in Plugins().offers:
        if offer.name.lower() == use.lower():
            whose = f"{offer.distribution} {offer.version}"
            fix = f"choose another, such as 'acme-{use}', or set its name in a YAML with --use"
            raise UsageError(f"{use!r} is the name of {offer.kind} {offer.name!r} of {whose}; {fix}")
    files = _files(name, use, module, kind, license)
    with writing_folder(place) as temporary:
        for path, text in files.items():
            (temporary / path).parent.mkdir(exist_ok=True)
            write(temporary / path, text)
    return place


def _module_name(name: str) -> str:
    """Return the module name of a distribution; UsageError if the name is not valid."""
    from seqpipe.config.yaml import resolve

    if not _NAME.fullmatch(name):
        rule = "letters, digits, '.', '_' and '-', the first and the last a letter or digit"
        raise UsageError(f"{name!r} is not a distribution name; use {rule}, such as acme-conv")
    if len(name) > _NAME_CHARS:
        raise UsageError(f"{name!r} is {len(name)} characters long; at most {_NAME_CHARS}, as every YAML contains it")
    module = re.sub("[-.]", "_", name).lower()
    if not module.isidentifier() or keyword.iskeyword(module) or resolve(name) != name:
        raise UsageError(f"{name!r} is not valid as a Python module or as text in a YAML; try 'my-{name}'")
    return module


def _check_free(name: str, module: str) -> None:
    """Raise UsageError if the name is already in use."""
    import importlib.util
    from importlib import metadata

    fix = f"choose another, such as 'acme-{name}'"
    if module in ("seqpipe", "seqpipe_plugins"):
        raise UsageError(f"{name!r} is seqpipe's own name; {fix}")
    if module in sys.stdlib_module_names:
        raise UsageError(f"{name!r} is a module of Python's standard library; {fix}")
    try:
        whose = f"the distribution {name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:
        if importlib.util.find_spec(module) is None:
            return
        whose = f"a module {module!r}"
    raise UsageError(f"{name!r}: {whose} is already installed; {fix}")


def _files(name: str, use: str, module: str, kind: str, license: str) -> dict[str, str]:
    """Return the text of each file, by its path in the package's folder."""
    from importlib import resources

    from seqpipe.config.plugins import BUILTIN

    data = "example.txt" if kind == "reader" else "example.jsonl"
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
    folder = resources.files("seqpipe.commands") / "templates" / "plugin"
    templates = {
        path: folder.joinpath(*f"{source}.txt".split("/")).read_text(encoding="utf-8")
        for path, source in sources.items()
    }

    component = "".join(part[:1].upper() + part[1:] for part in re.split("[-._]+", use))
    used = {*re.findall(r"\w+", templates[f"{module}/{kind}.py"] + templates[f"tests/test_{module}.py"])}
    if component in used or component in dir(builtins):
        component += kind.capitalize()
    kind_with_article = f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
    needs_torch = kind not in ("reader", "tokenizer")
    has_license = license != "none"
    offer = f'"{use}": "{module}.{kind}:{component}"'
    components = {**_PIPELINE, kind: use}
    if kind == "reader":
        components["head"] = "{use: tags, scheme: none}"
    fields = {
        **components,
        "data": data,
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
    return {path: Template(template).substitute(fields) for path, template in templates.items()}
