"""The demo's table: what was asked, who answered and why, and how far the predictions were off."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
from demo_requests import Sent
from gateway_process import Gateway
from rich.console import Console
from rich.table import Table


def print_report(sent: list[Sent], processes: list[psutil.Process], console: Console) -> bool:
    """Print the table and the sums. Returns whether every request was answered."""
    table = Table(title=f"{len(sent)} requests and where they went", title_justify="left", show_lines=True)
    for name, justify in (("request", "left"), ("prompt", "right"), ("deployment", "left"), ("why", "left")):
        table.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for name in ("TTFT s\npredicted", "\nactual", "total s\npredicted", "\nactual"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in sent:
        shape = each.shape
        table.add_row(
            f"{shape.label}\n[dim]smollm2{shape.selector}, max {shape.max_tokens}[/]",
            str(each.prompt_tokens or "-"),
            f"{each.deployment}\n[dim]{each.precision}[/]",
            f"[red]{each.error}[/]" if each.error else each.reason,
            _seconds(each.predicted_ttft_s),
            _seconds(each.ttft_s),
            _seconds(each.predicted_total_s),
            _seconds(each.total_s),
        )
    console.print(table)
    _print_sums(sent, processes, console)
    return not any(each.error for each in sent)


def print_repeated(before: Sent, again: Sent, console: Console) -> bool:
    """Print what a repeated prompt took. Returns whether it was answered from the cache."""
    if again.error or again.cache != "hit":
        console.print(f"[red]The same prompt again was no hit:[/] {again.error or again.cache}")
        return False
    form = "streamed" if again.shape.stream else "not streamed"
    console.print(
        f"The slowest of them again, {form} this time: from the cache in {again.total_s * 1000:.0f} ms "
        f"instead of {before.total_s:.2f} s; {before.total_s - again.total_s:.2f} s saved."
    )
    return True


def print_slowest(gateway: Gateway, console: Console) -> bool:
    """Print where the slowest request's time went, as `paceline why` says it. Returns whether it could."""
    (slowest,) = gateway.get("/admin/requests?sort=slowest&limit=1")["requests"]
    command = ["paceline", "why", slowest["request_id"], "--url", gateway.url]
    said = subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:]], capture_output=True, text=True, check=False
    )
    console.print(f"\nThe slowest of all, by `{' '.join(command[:3])}`:\n{said.stdout or said.stderr}", markup=False)
    console.print(f"The dashboard, while it runs: {gateway.url}/ui", markup=False)
    return said.returncode == 0


def _print_sums(sent: list[Sent], processes: list[psutil.Process], console: Console) -> None:
    chosen = Counter(each.deployment for each in sent if each.deployment)
    console.print("Chosen: " + ", ".join(f"{name} {count}×" for name, count in chosen.most_common()))
    console.print(f"Processes of the engines: {len(processes)}")
    for label, group in (
        ("all", sent),
        ("alone", [each for each in sent if not each.together]),
        ("at once", [each for each in sent if each.together]),
    ):
        errors = [
            abs(each.predicted_total_s / each.total_s - 1)
            for each in group
            if each.predicted_total_s and not each.error
        ]
        if errors:
            console.print(
                f"Prediction error of the total, {label}: "
                f"median {statistics.median(errors):.0%}, worst {max(errors):.0%}"
            )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def print_snippets(url: str, model: str, console: Console) -> None:
    """Print how to ask the gateway that stays up."""
    console.print(f"\nPaceline stays up at [bold]{url}[/]; Ctrl+C ends it and its engines.\n")
    console.print(
        f"""curl {url}/v1/chat/completions -H 'content-type: application/json' \\
  -d '{{"model": "{model}@int8+", "messages": [{{"role": "user", "content": "Say hello."}}], "max_tokens": 32}}'
""",
        soft_wrap=True,
        markup=False,
    )
    console.print(
        f"""from openai import OpenAI

client = OpenAI(base_url="{url}/v1", api_key="unused")
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "Say hello."}}], max_tokens=32
)
print(answer.choices[0].message.content)
""",
        soft_wrap=True,
        markup=False,
    )
