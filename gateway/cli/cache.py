"""`paceline cache`"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.lazy import CONTEXT
from gateway.cli.options import Config, Json, Url, settings_from
from gateway.cli.output import UserError, print_json, styled, table, write

if TYPE_CHECKING:
    from gateway.cli.running import RunningGateway

cache = typer.Typer(
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    epilog="Example: paceline cache clear --model qwen3-8b",
)

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@cache.callback()
def overview(context: typer.Context, config: Config = None, url: Url = "", as_json: Json = False) -> None:
    """Show what the cache of a running Paceline did and holds; clear, inspect and warm it."""
    if context.invoked_subcommand is None:
        stats(config, url, as_json)


@cache.command(epilog="Example: paceline cache stats --json")
def stats(config: Config = None, url: Url = "", as_json: Json = False) -> None:
    """Show hits, misses, and the tokens and seconds that they saved, by model."""
    report = _asked(_gateway(config, url).cache, counted=True)
    if as_json:
        print_json(report)
        return
    rows = [_row(model, counts) for model, counts in report["models"].items()]
    if len(rows) > 1:
        rows.append(_row("all", report["total"]))
    head = ("model", "hits", "misses", "coalesced", "bypassed", "hit rate", "tokens saved", "seconds saved")
    write(table(head, rows) if rows else "Nothing was asked yet that the cache could answer.")
    memory, store = report["memory"], report["store"]
    write(f"\nmemory: {memory['entries']} entries, {_size(memory['bytes'])}")
    if store is not None:
        held = store.get("models", {}).values()
        entries, size = sum(each["entries"] for each in held), sum(each["bytes"] for each in held)
        write(
            f"{store['address']}: {entries} entries, {_size(size)}; reading {store['read']}, writing {store['written']}"
        )


@cache.command(epilog="Example: paceline cache clear --model qwen3-8b --older-than 7d")
def clear(
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Answers of this model.")] = "",
    key: Annotated[str, typer.Option("--key", metavar="NAME", help="Answers to this client's key.")] = "",
    older_than: Annotated[str, typer.Option("--older-than", metavar="AGE", help="Such as 90m, 12h or 7d.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All answers.")] = False,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Delete answers; several conditions have to apply together."""
    if everything == bool(model or key or older_than):
        raise UserError("say what to delete", fix="--model, --key, --older-than, or --all for everything.")
    what: dict[str, Any] = {"model": model or None, "key": key or None, "older_than_s": _age_s(older_than)}
    deleted = _asked(_gateway(config, url).clear_cache, what)["deleted"]
    if as_json:
        print_json({"deleted": deleted})
    else:
        write(f"{deleted} {'entry' if deleted == 1 else 'entries'} deleted.")


@cache.command(epilog="Example: paceline cache inspect 3f9a0c17d2b84e65")
def inspect(
    key: Annotated[str, typer.Argument(metavar="KEY", help="What x-paceline-cache-key said, or its beginning.")],
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Show what is kept under a key."""
    if not re.fullmatch("[0-9a-f]{4,64}", key):
        raise UserError(f"{key!r} is no key", fix="It is 4 to 64 hexadecimal digits: the header x-paceline-cache-key.")
    entries = _asked(_gateway(config, url).kept, key)["entries"]
    if as_json:
        print_json({"entries": entries})
        return
    if not entries:
        raise UserError(f"nothing is kept under {key}")
    for entry in entries:
        write(styled(f"{entry.pop('key')}  {entry.pop('fingerprint')}", "bold"))
        body = entry.pop("body", "")
        for name, value in entry.items():
            write(f"  {name.replace('_', ' '):<14} {value if value is not None else '-'}")
        write(f"\n{body}\n")


@cache.command(epilog="Example: paceline cache warm prompts.jsonl")
def warm(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A request a line, or a line of an OpenAI batch.")],
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=64, help="Requests at once.")] = 1,
    config: Config = None,
    url: Url = "",
    as_json: Json = False,
) -> None:
    """Send requests, so that their answers are kept: what is known already costs nothing."""
    from gateway.cli.warming import read_requests, warm_up

    requests = read_requests(file)
    outcomes = warm_up(_gateway(config, url).url, requests, at_once, quiet=as_json)
    if as_json:
        print_json(outcomes)
    else:
        write(
            ", ".join(f"{count} {what}" for what, count in outcomes["outcomes"].items()) or "There was nothing to send."
        )
        for failure in outcomes["failures"]:
            write(f"  line {failure['line']}: {failure['why']}")
    if outcomes["failures"]:
        raise typer.Exit(1)


def _gateway(config: Path | None, url: str) -> RunningGateway:
    from gateway.cli.running import RunningGateway

    return RunningGateway.at(url, settings_from(config))


def _asked(question: Any, *arguments: Any, **options: Any) -> Any:
    from gateway.cli.running import NotRunning

    try:
        return question(*arguments, **options)
    except NotRunning as nobody:
        raise UserError(str(nobody), fix="Start it with `paceline up`, or say where it is with --url.") from None


def _row(name: str, counts: dict[str, Any]) -> list[Any]:
    asked = counts["hits"] + counts["misses"] + counts["coalesced"]
    rate = f"{100 * counts['hits'] / asked:.0f} %" if asked else "-"
    tokens = counts["saved_prompt_tokens"] + counts["saved_output_tokens"]
    numbers = [counts[each] for each in ("hits", "misses", "coalesced", "bypassed")]
    return [name, *numbers, rate, tokens, f"{counts['saved_s']:.1f}"]


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _age_s(text: str) -> float | None:
    if not text:
        return None
    found = _AGE.fullmatch(text)
    if found is None:
        raise UserError(f"{text!r} is no age", fix="It looks like 90m, 12h or 7d.")
    return float(found[1]) * _UNITS[found[2]]
