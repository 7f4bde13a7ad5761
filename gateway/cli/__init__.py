"""The command line. Nothing heavy is imported before a command needs it: `paceline --help` answers at once."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that was typed. Exit status: 0 done, 1 something has to be put right, 2 typed wrongly."""
    from gateway.cli.app import app
    from gateway.cli.output import UserError, report

    try:
        app(prog_name="paceline")
    except UserError as error:
        report(error, as_json="--json" in sys.argv)
        sys.exit(error.status)
