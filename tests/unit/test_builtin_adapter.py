"""What the built-in engine's adapter makes of its answers, how it is recognised, and how it is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engines import scripts
from engines.scripted import ScriptedEngine
from engines.subject import Subject

from adapters import launch
from adapters.base import Endpoint
from adapters.builtin import BuiltinAdapter
from adapters.discover import Found, discover, recognise
from adapters.errors import Broken, Loading
from adapters.launch import CannotStart, LaunchSpec, command
from policies.types import Capability, Operation, Precision

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}


@pytest.fixture
async def builtin(scripted: Callable[..., ScriptedEngine]) -> AsyncIterator[Subject]:
    engine = scripted(kind="builtin")
    subject = Subject(BuiltinAdapter(Endpoint("builtin", engine.url)), engine.model, engine)
    yield subject
    await subject.adapter.aclose()


def card(subject: Subject, **fields: object) -> None:
    """Let the engine's one model say this of itself."""
    assert subject.scripted is not None
    about = {"id": subject.engine_model, "object": "model", "owned_by": "paceline", **fields}
    subject.scripted.routes["GET /v1/models"] = scripts.whole({"object": "list", "data": [about]})


async def test_everything_about_the_model_is_the_engines_own_word(builtin: Subject) -> None:
    model = await builtin.model()
    assert (model.precision, model.scheme, model.precision_from) == (Precision.INT8, "int8-channel", "engine")
    assert (model.context, model.slots, model.digest) == (2048, 4, "c0ffee")
    assert model.cache_block == 16
    assert builtin.description is not None
    assert builtin.description.version == "0.1.0"
    assert {Capability.CHAT, Capability.JSON_SCHEMA, Capability.TOOL_CHOICE} <= model.capabilities


@pytest.mark.parametrize(
    ("precision", "scheme", "expected"),
    [
        ("bf16", "", (Precision.BF16, "")),
        ("fp32", "fp32", (Precision.FP32, "")),
        ("int4", "int4-group32", (Precision.INT4, "int4-group32")),
        ("int8", "int8: fbgemm (rows: 17 on), packed (rows: 1)", (Precision.INT8, "")),
        ("something new", "", (Precision.UNKNOWN, "")),
    ],
)
async def test_a_precision_is_what_it_says_or_unknown(
    builtin: Subject, precision: str, scheme: str, expected: tuple[Precision, str]
) -> None:
    card(builtin, precision=precision, scheme=scheme)
    model = await builtin.model()
    assert (model.precision, model.scheme) == expected
    assert model.precision_from == ("nobody" if expected[0] is Precision.UNKNOWN else "engine")


async def test_a_model_without_a_chat_template_is_given_no_chats(builtin: Subject) -> None:
    card(builtin, chat=False)
    without = (await builtin.model()).capabilities
    assert not {Capability.CHAT, Capability.TOOLS, Capability.TOOL_CHOICE} & without
    assert {Capability.COMPLETION, Capability.EMBEDDINGS, Capability.JSON_SCHEMA} <= without


async def test_one_that_still_loads_is_loading_and_not_down(builtin: Subject) -> None:
    assert builtin.scripted is not None
    error = {"error": {"message": "loading the model: 40 %", "type": "unavailable_error", "code": "loading"}}
    builtin.scripted.routes["GET /ready"] = scripts.status(503, error)
    with pytest.raises(Loading, match="40 %"):
        await builtin.adapter.describe()


async def test_without_a_model_it_is_broken(builtin: Subject) -> None:
    assert builtin.scripted is not None
    builtin.scripted.routes["GET /v1/models"] = scripts.whole({"object": "list", "data": []})
    with pytest.raises(Broken, match="no model"):
        await builtin.adapter.describe()


async def test_its_gauges_are_its_load(builtin: Subject) -> None:
    load = await builtin.adapter.load()
    assert (load.running, load.waiting, load.kv_usage) == (2, 1, 0.25)


@pytest.mark.parametrize("stream", [False, True])
async def test_its_timings_are_the_answers_phases(builtin: Subject, stream: bool) -> None:
    answer = (await builtin.stream(HELLO) if stream else await builtin.whole(HELLO))[1]
    assert (answer.outcome.queue_s, answer.outcome.prefill_s, answer.outcome.decode_s) == (0.01, 0.05, 0.03)


async def test_prompts_are_counted_by_its_tokeniser_without_the_rest_of_the_request(builtin: Subject) -> None:
    assert builtin.scripted is not None
    builtin.scripted.routes["POST /tokenize"] = scripts.whole({"count": 17, "tokens": []})
    assert await builtin.adapter.count_tokens(builtin.call(HELLO)) == 17
    asked = builtin.scripted.watched[-1].json
    assert asked["messages"] == HELLO["messages"]
    assert "max_tokens" not in asked
    several = builtin.call({"prompt": ["a", "b"]}, Operation.COMPLETION)
    assert await builtin.adapter.count_tokens(several) is None
    assert await builtin.adapter.count_tokens(builtin.call({"input": "a"}, Operation.EMBEDDINGS)) is None


async def test_it_is_told_from_paceline_by_a_model_that_has_a_precision(
    builtin: Subject, scripted: Callable[..., ScriptedEngine]
) -> None:
    assert builtin.scripted is not None
    assert await recognise(builtin.scripted.url) == "builtin"
    assert await discover((builtin.scripted.port,), limit_s=20) == [
        Found("builtin", "built-in engine", builtin.scripted.url)
    ]
    card(builtin)
    with pytest.raises(Broken, match="Paceline itself"):
        await recognise(builtin.scripted.url)


# How it is started


@pytest.fixture
def with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(launch, "has_gpu", lambda: False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What passes for a model, as long as nobody loads it."""
    (tmp_path / "config.json").touch()
    return tmp_path


@pytest.mark.usefixtures("with_torch")
def test_what_is_configured_is_on_its_command_line(folder: Path) -> None:
    spec = LaunchSpec(
        "own", "builtin", str(folder), alias="small", precision=Precision.INT8, context=2048, slots=3, threads=2
    )
    made = command(spec, 18080)
    assert made.argv[0] == sys.executable
    options = made.argv[made.argv.index("--model") :]
    assert dict(zip(options[::2], options[1::2], strict=True)) == {
        "--model": str(folder),
        "--host": "127.0.0.1",
        "--port": "18080",
        "--served-name": "small",
        "--precision": "int8",
        "--context": "2048",
        "--max-sequences": "3",
        "--threads": "2",
    }
    assert (made.url, made.health_path) == ("http://127.0.0.1:18080", "/ready")


@pytest.mark.usefixtures("with_torch")
def test_its_threads_do_not_hold_cores_that_others_need_but_on_a_gpu_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = LaunchSpec("a", "builtin", str(folder), env={"MINE": "1"})
    assert command(spec, 1).env == {"MINE": "1"}
    assert command(replace(spec, shares_cores=True), 1).env == {**launch.BUILTIN_SHARED_SPIN, "MINE": "1"}
    monkeypatch.setattr(launch, "has_gpu", lambda: True)
    assert command(spec, 1).env == {"MINE": "1"}


@pytest.mark.usefixtures("with_torch")
def test_it_guesses_ahead_where_no_other_engine_is_to_be_chosen_or_who_starts_it_says_so(folder: Path) -> None:
    alone = LaunchSpec("a", "builtin", str(folder))
    beside = replace(alone, shares_cores=True)
    assert "--speculative" not in command(alone, 1).argv
    assert command(beside, 1).argv[-2:] == ("--speculative", "off")
    assert command(replace(beside, args=("--speculative", "ngram")), 1).argv[-2:] == ("--speculative", "ngram")


def test_without_torch_the_command_that_installs_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CannotStart, match=r"pip install 'paceline\[engine\]'"):
        command(LaunchSpec("a", "builtin", str(tmp_path)), 1)


def test_a_model_or_a_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"no such model: nowhere\.gguf"):
        command(LaunchSpec("a", "builtin", "nowhere.gguf"), 1)
    with pytest.raises(CannotStart, match=r"no such program: .*/python-of-mine"):
        command(LaunchSpec("a", "builtin", str(tmp_path), python=tmp_path / "python-of-mine"), 1)


@pytest.mark.usefixtures("with_torch")
def test_what_is_no_model_is_refused_before_an_engine_is_started(tmp_path: Path) -> None:
    text = tmp_path / "README.md"
    text.write_text("# A model")
    for path in (tmp_path, text):
        with pytest.raises(CannotStart, match=r"neither a model folder, which has a config\.json, nor a GGUF file"):
            command(LaunchSpec("a", "builtin", str(path)), 1)
    text.write_bytes(b"GGUF and so on")
    assert command(LaunchSpec("a", "builtin", str(text)), 1)


def test_a_python_without_paceline_finds_the_engine_behind_all_that_it_has_itself(folder: Path) -> None:
    made = command(LaunchSpec("a", "builtin", str(folder), python=Path(sys.executable)), 1)
    program, root = made.argv[made.argv.index("-c") + 1 :][:2]
    look = program.rpartition("runpy")[0] + "print(sys.path[-1], sys.argv[1:])"
    bare = [sys.executable, "-I", "-S", "-c", look, root, "--model", "m"]
    done = subprocess.run(bare, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{root} ['--model', 'm']"
    assert (Path(root) / "engine/__init__.py").is_file()
