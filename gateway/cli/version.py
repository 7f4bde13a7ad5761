"""`paceline version`"""

from __future__ import annotations

from gateway.cli.options import Json
from gateway.cli.output import print_json, write


def version(as_json: Json = False) -> None:
    """Print the versions of Paceline, Python and the platform."""
    import platform

    from gateway import __version__

    versions = {"paceline": __version__, "python": platform.python_version(), "platform": platform.platform()}
    if as_json:
        print_json(versions)
    else:
        write(f"paceline {__version__} (Python {versions['python']}, {versions['platform']})")
