"""`seqpipe plugins`: list the installed components, show one, start a package of components, check it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from seqpipe.commands.options import Json, Quiet, make_console, parse_decode_options, print_json

app = typer.Typer(help="What is installed: components, their options, and what is broken.", rich_markup_mode=None)


@app.callback()
def list_by_default(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_all()


@app.command("list")
def list_all() -> None:
    """List every component and every broken plugin."""
    from seqpipe.commands.plugins.listing import list_components

    typer.echo(list_components())


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A component, such as lstm, or encoder/lstm if the name is ambiguous.")],
) -> None:
    """Show the options of a component with types, defaults and meaning."""
    from seqpipe.commands.plugins.listing import show_component

    typer.echo(show_component(name))


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the distribution, such as acme-conv.")],
    kind: Annotated[str, typer.Option("--kind", help="encoder, head, embedding, tokenizer or reader.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder in which to create the package; default: the current folder."),
    ] = None,
    use: Annotated[
        str | None,
        typer.Option("--use", help="Name of the component in a YAML; default: the name of the distribution."),
    ] = None,
    license: Annotated[str, typer.Option("--license", help="Apache-2.0, MIT, BSD-3-Clause or none.")] = "Apache-2.0",
    quiet: Quiet = False,
) -> None:
    """Write a template of a plugin package, with a passing test."""
    from seqpipe.commands.plugins.scaffold import write_package

    folder = write_package(name, kind, output, license, use)
    console = make_console(quiet)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        console.say(f"wrote {path}")
    console.say(f"\nnext: pip install -e {folder} && pytest {folder}")


@app.command()
def check(
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
