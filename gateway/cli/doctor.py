"""`paceline doctor`"""

from __future__ import annotations

import typer

from gateway.cli.options import Config, Json
from gateway.cli.output import print_json, styled, write

_STYLES = {"ok": "green", "note": "blue", "warn": "yellow", "fix": "red"}


def doctor(config: Config = None, as_json: Json = False) -> None:
    """Check configuration, packages, limits, memory, ports and engines, and say what to do.

    Exit status 1 when something has to be put right. Nothing is sent to a model.
    """
    from gateway.checks.examination import examine
    from gateway.checks.finding import Level

    findings = examine(config)
    to_fix = sum(finding.level is Level.FIX for finding in findings)
    if as_json:
        print_json({"ok": to_fix == 0, "findings": [finding.as_dict() for finding in findings]})
    else:
        for finding in findings:
            write(f"{styled(f'{finding.level:4}', _STYLES[finding.level])}  {finding.check:13}  {finding.what}")
            if finding.todo:
                write(f"{'':21}→ {finding.todo}")
        write(f"\n{to_fix} to fix" if to_fix else "\nnothing to fix")
    if to_fix:
        raise typer.Exit(1)
