# Sourced by scripts/test: what each stage runs.

test_environment() {
    python=$(paceline_environment .venv-test dev,hosted)
    bin=$(dirname "$python")
}

test_pytest() {
    test_environment
    exec "$bin/pytest" "$@"
}

stage_unit() {
    test_environment
    "$bin/pytest" -q -n auto tests/unit
}

stage_everything() {
    test_environment
    scripts/check
    "$bin/pytest" -q -n auto --dist loadgroup -m "not builtin and not vllm and not ollama and not mlx" --hypothesis-profile=thorough \
        --cov --cov-report=term --cov-fail-under=90 tests
    "$python" scripts/lib/wheel.py
}

# stage_engine KIND: makes the engine, starts it, and runs the tests that carry its mark.
stage_engine() {
    test_environment
    "$python" scripts/lib/engine_stage.py "$1" -- "$bin/pytest" -q -m "$1" tests
}

# stage_builtin: types and tests of the built-in engine in its own environment, the wheel with its extra, the contract.
stage_builtin() {
    local engine status=0
    test_environment
    engine=$("$python" scripts/engines/builtin) || status=$?
    if [ "$status" = 75 ]; then
        printf '%s\n' "!! SKIPPED: no environment for the built-in engine here" >&2
        return 0
    fi
    [ "$status" = 0 ] || return 1
    export PYTHONPATH=$PWD
    "$engine" -m mypy --strict engine
    "$engine" -m pytest -q tests/engine tests/gpu --ignore-glob='*/test_kernels_*'
    # Triton is interpreted, or not, from its first import on: a process of its own.
    TRITON_INTERPRET=1 "$engine" -m pytest -q tests/engine/test_kernels_*.py
    unset PYTHONPATH
    "$python" scripts/lib/wheel.py engine
    stage_engine builtin
}
