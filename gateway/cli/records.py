"""`paceline records`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.lazy import CONTEXT
from gateway.cli.options import Config, Json
from gateway.cli.output import UserError, print_json, styled, write, write_file
from gateway.cli.plots import drawable, plot_records
from gateway.cli.record_store import all_records, record_store
from gateway.cli.selections import HELP, fields_help, selecting

if TYPE_CHECKING:
    from measure.records import Record

SHOWN = 40
_FORMATS = ("table", "markdown", "csv", "jsonl", "parquet")

records = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    epilog="Example: paceline records --where model=qwen3-8b,precision=int8 --format markdown",
)


@records.callback()
def listing(
    context: typer.Context,
    where: Annotated[str, typer.Option("--where", "-w", metavar="SELECTION", help=HELP)] = "",
    form: Annotated[
        str, typer.Option("--format", "-f", metavar="|".join(_FORMATS), help="jsonl and parquet keep raw samples.")
    ] = "table",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there, not to standard output.")
    ] = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option("--plot", metavar="FILE", help="Draw them into FILE.svg or FILE.png instead. Can be repeated."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help=f"The newest N. Left out: {SHOWN} in a table, else all.")
    ] = None,
    fields: Annotated[bool, typer.Option("--fields", help="List what a selection can ask for.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List what was measured, the newest first, and export it.

    Filter with --where: engine, model, precision, kind, deployment, fingerprint, since, until and more (--fields).
    """
    if context.invoked_subcommand is not None:
        return
    if form not in _FORMATS:
        raise typer.BadParameter(f"{form!r} is none of {', '.join(_FORMATS)}", param_hint="--format")
    if fields:
        write(fields_help())
        return
    pictures = [drawable(path) for path in plot or ()]
    found = _select(where, config) if where else _all(config)
    if form == "table" and not as_json and not pictures and limit is None:
        limit = SHOWN
    shown = found[:limit]
    if pictures:
        _draw(shown, pictures)
    elif as_json:
        _emit(_json(shown), output)
    elif form == "table":
        from gateway.cli.record_table import record_table

        if not found:
            write("There are no records yet: `paceline bench` makes some.")
            return
        left = len(found) - len(shown)
        more = styled(f"\n{left} older ones are not shown: --limit {len(found)} shows all.", "dim") if left else ""
        _emit((record_table(shown) + more + "\n").encode(), output)
    else:
        _emit(_exported(shown, form, output), output)


@records.command(epilog="Example: paceline records show 3fa9c1d2")
def show(
    record: Annotated[str, typer.Argument(metavar="ID", help="The record's id, or how it begins; see the list.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show one record whole, with its raw samples."""
    found = _select(record, config)
    if len(found) > 1:
        from measure.record_fields import identity

        ids = ", ".join(identity(each) for each in found[:8])
        raise UserError(f"{record!r} names {len(found)} records", fix=f"One of them: {ids}")
    if as_json:
        print_json(_whole(found[0]))
        return
    from gateway.cli.record_table import record_page

    write(record_page(found[0]))


@records.command("import", epilog="Example: paceline records import colleague.jsonl")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON Lines or Parquet; - is standard input.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Take over other people's records: to compare with, never to route by.

    They are marked foreign. All or none: a file that holds something else is refused.
    """
    from measure.extras import MissingExtra
    from measure.imports import ImportRefused, read_records

    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        read = read_records(data)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except ImportRefused as error:
        raise UserError(f"{file}: {error}", fix="Nothing was imported.") from None
    except MissingExtra as missing:
        raise UserError(missing.message, fix=missing.fix) from None
    with record_store(config) as store:
        new = store.add_imported(*read)
    if as_json:
        print_json({"read": len(read), "imported": new})
    else:
        known = f", {len(read) - new} were known" if new < len(read) else ""
        write(f"{new} records imported{known}. They are marked foreign, and nothing is routed by them.")


def _select(text: str, config: Path | None) -> list[Record]:
    from measure.selection import Selection

    with selecting():
        selection = Selection.parse(text)
        with record_store(config) as store:
            return selection.of(all_records(store))


def _all(config: Path | None) -> list[Record]:
    with record_store(config) as store:
        return all_records(store)


def _exported(found: list[Record], form: str, output: Path | None) -> bytes:
    from measure.export import Format, export
    from measure.extras import MissingExtra

    if form == Format.PARQUET and output is None and sys.stdout.isatty():
        raise UserError("Parquet is no text for a terminal", fix="Name a file with --output.")
    try:
        return export(found, Format(form))
    except MissingExtra as missing:
        raise UserError(missing.message, fix=missing.fix) from None


def _draw(found: list[Record], pictures: list[Path]) -> None:
    for path in pictures:
        plot_records(found, path)
        write(f"{path} is written", sys.stderr)


def _emit(data: bytes, output: Path | None) -> None:
    if output is None or str(output) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    else:
        write_file(output, data, option="--output")
        write(f"{output} is written", sys.stderr)


def _json(found: list[Record]) -> bytes:
    import json

    plain = {"records": [_whole(record) for record in found]}
    return (json.dumps(plain, indent=2, ensure_ascii=False) + "\n").encode()


def _whole(record: Record) -> dict[str, Any]:
    from measure.record_fields import identity

    return {"id": identity(record), **record.to_dict()}
