"""`paceline quality`"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.interrupts import INTERRUPTED, run_to_the_end
from gateway.cli.options import Config, Json, Url, settings_from, told_plainly
from gateway.cli.output import UserError, print_json, styled, write, write_file

if TYPE_CHECKING:
    from gateway.cli.running import Beside
    from gateway.settings import Settings
    from measure.async_store import AsyncStore
    from measure.quality.prompts import Prompt
    from measure.quality.regression import Examined

REPORT_NAME = "quality"


def quality(
    deployments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DEPLOYMENT]...", help="Ids, models or MODEL@SELECTOR. Left out: all quantised ones."),
    ] = None,
    baseline: Annotated[
        str, typer.Option(metavar="ID", help="Compare with this deployment. Left out: the model's best precision.")
    ] = "",
    samples: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Your own prompts as well: JSON Lines, see docs/quality.md.")
    ] = None,
    category: Annotated[
        list[str] | None, typer.Option("--category", help="Only these prompts. Can be repeated; no verdict is kept.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only N prompts, of all categories; no verdict is kept.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write quality.md and quality.html with the worst pairs.")
    ] = None,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Send the same prompts to a model's best precision and to its quantised deployments, and judge the difference.

    What has passed serves also those who asked for no precision; a running Paceline takes the verdict up by itself.
    One that was updated has to pass again. Ctrl+C keeps the verdicts that are there.

    Exit status: 0 all passed (or there is nothing to test), 1 one has not, 2 typed wrongly, 130 interrupted.
    """
    from gateway.cli.running import beside

    settings = settings_from(config)
    prompts = _prompts(samples, category or [], limit)
    wanted = _Wanted(settings, deployments or [], baseline, prompts, _suite(samples), beside(url, settings))
    wanted.is_whole = not category and limit is None
    if report is not None:
        _make_folder(report)
    with told_plainly():
        interrupted = not run_to_the_end(_regress(wanted))
    if report is not None and wanted.tested:
        _write_report(report, wanted.tested)
    _tell(wanted, as_json=as_json, interrupted=interrupted)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if not wanted.all_passed:
        raise typer.Exit(1)


@dataclass
class _Wanted:
    """A regression as it was typed, and what has come of it so far."""

    settings: Settings
    words: Sequence[str]
    baseline: str
    prompts: Sequence[Prompt]
    suite: str
    beside: Beside
    is_whole: bool = True
    tested: list[Examined] = field(default_factory=list)
    given_up: dict[str, str] = field(default_factory=dict)
    """Baselines that could not be asked, and why."""

    @property
    def all_passed(self) -> bool:
        from policies.types import Quality

        good = (Quality.BASELINE, Quality.PASSED)
        return not self.given_up and all(each.verdict.quality in good for each in self.tested)


def _prompts(samples: Path | None, categories: Sequence[str], limit: int | None) -> Sequence[Prompt]:
    from measure.quality.samples import CATEGORY, SamplesError, read_samples
    from measure.quality.suite import CATEGORIES, SUITE, spread

    known = (*CATEGORIES, CATEGORY)
    for name in categories:
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--category")
    try:
        own = read_samples(samples) if samples is not None else ()
    except SamplesError as error:
        problems = [{"where": each.where, "what": each.what, "fix": each.fix} for each in error.problems]
        raise UserError("these samples cannot be used", problems=problems, status=2) from None
    prompts = [prompt for prompt in (*SUITE, *own) if not categories or prompt.category in categories]
    return prompts if limit is None else spread(prompts, limit)


def _suite(samples: Path | None) -> str:
    from measure.quality.samples import digest_of
    from measure.quality.suite import VERSION

    return VERSION if samples is None else f"{VERSION} and samples {digest_of(samples)}"


async def _regress(wanted: _Wanted) -> None:
    """Fill ``tested``, model by model; each verdict is kept as soon as it is there."""
    from adapters.errors import EngineError
    from gateway.benching import subjects
    from gateway.cli.progress import progress_bar
    from gateway.reach import NoneSelected, chosen, reach
    from measure.async_store import AsyncStore
    from measure.place import records_in
    from measure.quality.examine import Examinee
    from measure.quality.regression import regress
    from measure.quality.roles import roles

    store = await AsyncStore.open(records_in(wanted.settings.data_dir))
    try:
        with progress_bar() as tell:
            async with reach(
                wanted.settings, (), wanted.beside.deployments, lambda note: tell("engines", 0, 1, note)
            ) as reached:
                found = subjects(
                    reached, wanted.settings, wanted.beside.ask, lambda seen: tell("live traffic", 0, 1, seen)
                )
                there = {each.deployment.id: each for each in found}
                everyone = [each.deployment for each in reached]
                if wanted.baseline and wanted.baseline not in there:
                    raise NoneSelected(f"{wanted.baseline!r} (--baseline) is none of {', '.join(sorted(there))}")
                meant = chosen(wanted.words, everyone)
                for group in roles(everyone, meant, named=wanted.words, baseline=wanted.baseline):
                    members = [there[each.id] for each in (group.baseline, *group.candidates)]
                    baseline, *candidates = (Examinee(each.deployment, each.connect, each.traffic) for each in members)
                    try:
                        async for tested in regress(baseline, candidates, wanted.prompts, wanted.suite, progress=tell):
                            wanted.tested.append(tested)
                            if wanted.is_whole:
                                await _keep(store, tested)
                    except EngineError as error:
                        wanted.given_up[group.baseline.id] = f"{type(error).__name__}: {error.message}"
    except NoneSelected as error:
        raise UserError(str(error), status=2) from None
    finally:
        await store.aclose()


async def _keep(store: AsyncStore, tested: Examined) -> None:
    from gateway.cli.verdict import keep_verdict
    from measure.verdicts import Judged
    from policies.types import Quality

    if tested.verdict.quality is not Quality.UNTESTED:
        await keep_verdict(store, Judged.QUALITY, tested.deployment, tested.verdict.to_dict())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot make the folder {folder}: {error.strerror or error}"
        raise UserError(message, fix="Name another one with --report.", status=2) from None


def _write_report(folder: Path, tested: Sequence[Examined]) -> None:
    from measure.quality.report import to_html, to_markdown

    for suffix, text in ((".md", to_markdown(tested)), (".html", to_html(tested))):
        write_file(folder / f"{REPORT_NAME}{suffix}", text.encode(), option="--report")


def _tell(wanted: _Wanted, *, as_json: bool, interrupted: bool) -> None:
    if as_json:
        results = {each.deployment.id: each.verdict.to_dict() for each in wanted.tested}
        kept = wanted.is_whole
        print_json({"deployments": results, "given_up": wanted.given_up, "kept": kept, "interrupted": interrupted})
        return
    from gateway.cli.quality_table import told

    for each in wanted.tested:
        write(told(each.verdict) + "\n")
    for id_, why in wanted.given_up.items():
        write(f"{styled('error:', 'red')} the baseline {id_} does not answer: {why}")
    if not wanted.tested and not wanted.given_up and not interrupted:
        write("There is nothing to test: no quantised deployment with a better one of the same model beside it.")
    if wanted.tested and not wanted.is_whole:
        write(styled("Not the whole suite: these verdicts are not kept.", "dim"))
    if interrupted:
        write(styled("Interrupted: whoever has no verdict above is as before.", "dim", sys.stderr), sys.stderr)
