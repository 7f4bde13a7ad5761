"""`paceline key`"""

from __future__ import annotations

import re
from typing import Annotated

import typer

from gateway.cli.options import Json
from gateway.cli.output import UserError, print_json, write

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def key(
    name: Annotated[str, typer.Option(help="Who gets it; shown in logs and limits.")] = "default",
    admin: Annotated[bool, typer.Option("--admin", help="May also use /admin/*.")] = False,
    as_json: Json = False,
) -> None:
    """Make a key: it is shown once, and its hash goes into the configuration."""
    from gateway.keys import hash_key, new_key

    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be a key's name", fix="Letters, digits, dots, dashes and underscores, 64 at most."
        )
    secret = new_key()
    if as_json:
        print_json({"name": name, "key": secret, "hash": hash_key(secret), "admin": admin})
        return
    lines = [f"    - name: {name}", f"      hash: {hash_key(secret)}", *(["      admin: true"] if admin else [])]
    write(f"The key, which is not shown again:\n\n  {secret}\n\nIts lines in paceline.yaml:\n")
    write("\n".join(["auth:", "  keys:", *lines]))
