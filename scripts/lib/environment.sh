# Sourced by the scripts beside it: makes a virtual environment with Paceline in it, once per state of pyproject.toml.

# Prints the path of a Python that Paceline supports; fails with a clear line when there is none.
paceline_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        if [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 \
            && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "Paceline needs Python 3.11 or newer; set PYTHON to one" >&2
    return 1
}

# paceline_environment DIRECTORY EXTRAS: prints the environment's Python. uv is used where there is one: it is faster.
paceline_environment() {
    local directory=$1 extras=$2 python stamp wanted
    python=$(paceline_python)
    stamp="$directory/.paceline"
    wanted="$extras $("$python" -V) $(cat pyproject.toml constraints.txt | cksum)"
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
        echo "Making the virtual environment $directory …" >&2
        rm -rf "$directory"
        if command -v uv >/dev/null 2>&1; then
            uv venv -q --python "$python" "$directory" >&2
            uv pip install -q --python "$directory/bin/python" --constraint constraints.txt -e ".[$extras]" >&2
        else
            "$python" -m venv "$directory" >&2
            "$directory/bin/python" -m pip install -q --disable-pip-version-check --constraint constraints.txt -e ".[$extras]" >&2
        fi
        echo "$wanted" >"$stamp"
    fi
    echo "$PWD/$directory/bin/python"
}
