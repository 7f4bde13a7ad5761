"""`paceline compare`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import Config, Json
from gateway.cli.output import UserError, print_json, write
from gateway.cli.selections import HELP, selecting

if TYPE_CHECKING:
    from measure.compare_variables import NotComparable


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help=f"A selection of records. {HELP}")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one, that differs in one variable.")],
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="VARIABLE", help="May differ as well. Can be repeated.")
    ] = None,
    plot: Annotated[
        list[Path] | None,
        typer.Option("--plot", metavar="FILE", help="Draw both into FILE.svg or FILE.png. Can be repeated."),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say what B changed against A, and how sure that is; refuse when more than one variable differs.

    Variables: model, engine, version, precision (with its scheme), hardware, prompt, limit, concurrency, prefix,
    context, slots, and the engine's settings by their names. `paceline records --fields` lists what selections know.
    Ends with 1, and the list of what differs, when the two cannot be compared.
    """
    from gateway.cli.plots import drawable, plot_records
    from gateway.cli.record_store import all_records, record_store
    from measure.compare import compare as compared
    from measure.compare_variables import NotComparable
    from measure.selection import Selection

    files = [drawable(path) for path in plot or ()]
    with selecting():
        selections = [Selection.parse(before), Selection.parse(after)]
        with record_store(config) as store:
            records = all_records(store)
        sides = [selection.alone(records) for selection in selections]
    try:
        made = compared(*sides, allow=_names(allow), history=records)
    except NotComparable as refusal:
        raise _refused(refusal) from None
    for path in files:
        plot_records([*sides[0], *sides[1]], path)
    if as_json:
        print_json({"a": before, "b": after, **made.to_dict()})
        return
    from gateway.cli.compare_table import comparison_page

    for name, selection, side in zip(made.sides, selections, sides, strict=True):
        write(f"{name}  {selection.text or 'everything'} ({len(side)} records)")
    write(f"\n{comparison_page(made)}")
    for path in files:
        write(f"\n{path} is written")


def _names(allow: list[str] | None) -> list[str]:
    return [name.strip() for names in allow or () for name in names.split(",") if name.strip()]


def _refused(refusal: NotComparable) -> UserError:
    problems = [
        {
            "where": f"{difference.name}:",
            "what": f"{difference.before or 'none'} → {difference.after or 'none'}",
            "fix": f"--allow {difference.name} accepts it",
        }
        for difference in refusal.differences
    ]
    return UserError(f"not compared: {refusal.message}", fix=refusal.fix, problems=problems)
