"""The command line that all executables beside this package have in common."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from engine_kit.cache import LOCK_LIMIT_S, Artifact, root
from engine_kit.errors import FAILED, OK, UNAVAILABLE, KitError
from engine_kit.process import say

_EPILOG = """\
The result's path is the only thing on stdout; progress goes to stderr. Results are kept in {root}
(ENGINE_KIT_CACHE chooses another folder). Exit status: 0 made or there already; 75 cannot be had here now
(a registry does not answer, a tool is missing); 1 anything else."""


def run(
    description: str,
    artifact: Callable[[argparse.Namespace], Artifact],
    arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> NoReturn:
    """Make what `artifact` says for the parsed arguments, print its path, and exit."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog=_EPILOG.format(root=root()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="say whether it is there, without making it (0 or 75)")
    parser.add_argument(
        "--lock-limit-s",
        type=float,
        default=LOCK_LIMIT_S,
        metavar="S",
        help="longest wait for another process that is making the same (default: %(default)g)",
    )
    arguments(parser)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that children are ended too
    sys.exit(_make(artifact(chosen), check=chosen.check, lock_limit_s=chosen.lock_limit_s))


def _make(wanted: Artifact, *, check: bool, lock_limit_s: float) -> int:
    if check and not wanted.made:
        say(f"{wanted.name} has not been made yet")
        return UNAVAILABLE
    try:
        print(wanted.make(lock_limit_s))
    except KitError as error:
        say(f"{wanted.name}: {error}")
        return error.exit_code
    except OSError as error:
        say(f"{wanted.name}: {error}")
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return OK
