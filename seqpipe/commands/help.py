"""The help of the commands: a usage line, columns that wrap at words, commands in groups, examples to copy."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from typer.core import TyperCommand, TyperGroup


def command_examples(path: str) -> list[str]:
    """Return the example command lines of a command or group; those of seqpipe itself lead from data to a server."""
    lines = resources.files("seqpipe.commands").joinpath("examples.txt").read_text("utf-8").splitlines()
    return [line for line in lines if f"{line} ".startswith(f"seqpipe {path} ")] if path else lines[:3]


class _Help:
    """The help of a command or a group, without Python types and with the whole summary."""

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        pieces = ["COMMAND"] if isinstance(self, TyperGroup) else []
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                name = parameter.metavar or parameter.name.upper()
                pieces.append(name if parameter.required or name.startswith("[") else f"[{name}]")
        return [*pieces, "[OPTIONS]"]

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        """Write usage, summary, examples, commands, arguments and options."""
        self.format_usage(ctx, formatter)
        formatter.write("\n" + _wrap(" ".join(self.help.split()), formatter.width, "  ") + "\n")
        path = ctx.command_path.rpartition("seqpipe")[2].strip()
        formatter.write("\nExamples:\n" + "".join(f"  {example}\n" for example in command_examples(path)))
        arguments = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        options = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name != "argument"]
        sections = {"Arguments": [(argument.metavar or argument.name.upper(), argument.help) for argument in arguments]}
        commands: Mapping[str, Any] = self.commands if isinstance(self, TyperGroup) else {}
        for name, child in commands.items():
            summary = " ".join(child.help.split()).partition(". ")[0].removesuffix(".")
            sections.setdefault(child.rich_help_panel or "Commands", []).append((name, f"{summary}."))
        sections["Options"] = [_option(option) for option in options]
        for title, rows in sections.items():
            if rows:
                formatter.write(f"\n{title}:\n{_columns(rows, formatter.width)}\n")


class Command(_Help, TyperCommand): ...


class Group(_Help, TyperGroup): ...


def _option(option: Any) -> tuple[str, str]:
    """Return the names of an option with its value, and its help with the bounds and the default."""
    opts = sorted(option.opts, key=len)
    names, notes = ", ".join(opts), []
    if option.is_flag:
        names += "".join(f" / {name}" for name in option.secondary_opts)
    else:
        names += f" {option.metavar or opts[-1].rpartition('-')[2].upper()}"
    least, most = (getattr(option, bound, None) for bound in ("min", "max"))
    if least is not None:
        notes.append(f"at least {least}" if most is None else f"{least} to {most}")
    if option.required:
        notes.append("required")
    if not option.is_flag and option.default not in (None, ()):
        notes.append(f"default: {option.default}")
    return names, f"{option.help} [{'; '.join(notes)}]" if notes else option.help


def _columns(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Format names and texts in two columns; a name that is too long for its column has a separate line."""
    indent = min(26, max(len(name) for name, _ in rows))
    lines = []
    for name, text in rows:
        column = _wrap(text, width, " " * (indent + 4))
        lines.append(f"  {name:<{indent}}{column[indent + 2 :]}" if len(name) <= indent else f"  {name}\n{column}")
    return "\n".join(lines)


def _wrap(text: str, width: int, indent: str) -> str:
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
