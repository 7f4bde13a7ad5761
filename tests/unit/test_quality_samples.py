"""Users' samples: what they become, and what is said of each mistake in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replies import said

from measure.quality.samples import EXAMPLE, MAX_TOKENS, MOST_PROBLEMS, SamplesError, digest_of, read_samples


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "samples.jsonl"


def write(path: Path, *samples: object) -> Path:
    path.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in samples))
    return path


def test_a_sample_is_a_prompt_with_what_is_expected(path: Path) -> None:
    schema = {"type": "object", "required": ["total"]}
    write(
        path,
        {"prompt": "Capital of France?", "expect": "Paris", "id": "capital", "max_tokens": 8},
        "",
        {"prompt": "A date?", "regex": r"\d{4}-\d{2}-\d{2}"},
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Sum?"}],
            "schema": schema,
        },
        {"prompt": "Anything?"},
    )
    capital, date, total, free = read_samples(path)
    assert (capital.id, capital.category, capital.max_tokens) == ("samples/capital", "samples", 8)
    assert capital.messages == ({"role": "user", "content": "Capital of France?"},)
    assert not capital.problems(said("It is paris."))
    assert capital.problems(said("Rome"))
    assert (date.id, date.max_tokens) == ("samples/line-3", MAX_TOKENS)
    assert not date.problems(said("On 2024-03-05."))
    assert not total.problems(said('{"total": 3}'))
    assert total.problems(said("{}"))
    assert [message["role"] for message in total.messages] == ["system", "user"]
    assert free.problems(said(""))
    assert not free.problems(said("Something."))


def test_the_example_of_the_help_is_a_good_sample(path: Path) -> None:
    assert read_samples(write(path, EXAMPLE))


def test_several_expectations_hold_together(path: Path) -> None:
    (both,) = read_samples(write(path, {"prompt": "x", "expect": "a", "regex": "b"}))
    assert len(both.problems(said("c"))) == 2


@pytest.mark.parametrize(
    ("sample", "what"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ({"prompt": "x", "expected": "y"}, "unknown field 'expected'"),
        ({"expect": "y"}, "either 'prompt' or 'messages'"),
        ({"prompt": "x", "messages": []}, "either 'prompt' or 'messages'"),
        ({"prompt": ""}, "'prompt' is ''"),
        ({"prompt": 3}, "'prompt' is 3"),
        ({"messages": "x"}, "'messages' is not a list"),
        ({"messages": []}, "'messages' is not a list"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "'messages[0]' has no role"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "'messages[0]' has other fields"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "'messages[0]' has other fields"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "does not end with the user"),
        ({"prompt": "x", "regex": "("}, "'regex' is no regular expression"),
        ({"prompt": "x", "schema": "object"}, "'schema' is not an object"),
        ({"prompt": "x", "schema": {"type": "strin"}}, "'schema' is no JSON Schema"),
        ({"prompt": "x", "expect": None}, "'expect' is None"),
        ({"prompt": "x", "max_tokens": 0}, "'max_tokens' is 0"),
        ({"prompt": "x", "max_tokens": True}, "'max_tokens' is True"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_write_instead(path: Path, sample: object, what: str) -> None:
    write(path, {"prompt": "good"}, sample)
    with pytest.raises(SamplesError) as caught:
        read_samples(path)
    (problem,) = caught.value.problems
    assert problem.where == "samples.jsonl:2"
    assert what in problem.what
    assert problem.fix


def test_all_mistakes_are_told_at_once_up_to_a_bound(path: Path) -> None:
    with pytest.raises(SamplesError) as caught:
        read_samples(write(path, *["{"] * 50))
    assert len(caught.value.problems) == MOST_PROBLEMS


def test_an_id_that_is_there_already_is_a_mistake(path: Path) -> None:
    with pytest.raises(SamplesError, match="is there already"):
        read_samples(write(path, {"prompt": "x", "id": "a"}, {"prompt": "y", "id": "a"}))


def test_a_file_that_cannot_be_used_is_told(path: Path) -> None:
    with pytest.raises(SamplesError, match="cannot be read"):
        read_samples(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SamplesError, match="not UTF-8"):
        read_samples(path)
    path.write_text("\n\n")
    with pytest.raises(SamplesError, match="has no samples"):
        read_samples(path)


def test_other_samples_have_another_digest(path: Path) -> None:
    before = digest_of(write(path, {"prompt": "x"}))
    assert digest_of(path) == before
    assert digest_of(write(path, {"prompt": "y"})) != before
