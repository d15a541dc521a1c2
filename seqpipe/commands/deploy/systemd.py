"""A unit for systemd with the bundle beside it."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from seqpipe.commands.deploy.output import (
    NameRule,
    bundle_files,
    checked_bundle,
    next_steps,
    quoted,
    template,
    write_files,
)
from seqpipe.errors import UsageError

NAMES = NameRule(r"[A-Za-z0-9][A-Za-z0-9_.-]*", 100, "letters, digits, '.', '_' and '-'")
_PATH = re.compile(r"(/[A-Za-z0-9_.+@-]+)+")
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # by ProtectHome and PrivateTmp


def write_systemd(
    path: Path,
    output: Path,
    name: str | None,
    command: PurePosixPath,
    place: PurePosixPath | None,
    cuda: bool,
    port: int,
) -> str:
    """Writes the folder; the commands to type next."""
    content = checked_bundle(path, output, cuda)
    name = NAMES.choose(name, content, "systemd")
    place = place or PurePosixPath("/srv/seqpipe", name)
    for flag, value in (("--command", command), ("--place", place)):
        _check_path(flag, value)
    service = f"seqpipe-{name}.service"
    unit = template(
        "unit.service",
        name=name,
        command=command,
        place=place,
        port=port,
        device="cuda" if cuda else "cpu",
        devices="" if cuda else "PrivateDevices=yes\n",
    )
    write_files(output, {service: unit, **bundle_files(content, "bundle")})
    return next_steps(
        output,
        f"sudo mkdir -p {place.parent} && sudo cp -rT {quoted(output / 'bundle')} {place}",
        f"sudo cp {quoted(output / service)} /etc/systemd/system/",
        f"sudo systemctl daemon-reload && sudo systemctl enable --now {service}",
    )


def _check_path(flag: str, path: PurePosixPath) -> None:
    """UsageError for a path that systemd would not take as it stands, or that the service would not see."""
    if not _PATH.fullmatch(str(path)) or ".." in path.parts:
        raise UsageError(f"{flag} {path}: must be an absolute path of letters, digits and . _ + @ -")
    hidden = next((folder for folder in _HIDDEN if path.is_relative_to(folder)), None)
    if hidden:
        raise UsageError(f"{flag} {path}: the service does not see {hidden}; choose a place such as /opt or /srv")
