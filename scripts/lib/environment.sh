# Sourced by the scripts beside this folder: makes a virtual environment with Paceline in it, anew when its pins change.

# Prints the path of a Python that Paceline supports; fails with a clear line when there is none.
paceline_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo "Paceline needs Python 3.11 or newer; set PYTHON to one." >&2
    return 1
}

# paceline_environment DIRECTORY EXTRAS: prints the environment's Python.
# uv installs: it checks the hashes in constraints.txt for an editable install too, which pip does not.
# Everything is compiled here: uv does not unless asked, and where PYTHONDONTWRITEBYTECODE is set (in many
# containers) every process would compile all that it imports anew, for longer than the rest of its start takes.
paceline_environment() {
    local directory=$1 extras=$2 python stamp wanted uv
    python=$(paceline_python) || return 1
    stamp="$directory/.paceline"
    wanted="$extras $("$python" -V) $(cat pyproject.toml constraints.txt | cksum)"
    if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
        echo "Making the virtual environment $directory …" >&2
        rm -rf "$directory"
        "$python" -m venv "$directory" >&2 || return 1
        uv=$(command -v uv) || {
            "$directory/bin/python" -m pip install -q --disable-pip-version-check uv >&2 || return 1
            uv="$directory/bin/uv"
        }
        "$uv" pip install -q --compile-bytecode --python "$directory/bin/python" --constraint constraints.txt \
            -e ".[$extras]" >&2 || return 1
        echo "$wanted" >"$stamp"
    fi
    "$directory/bin/python" -m compileall -q adapters cache engine gateway measure policies >&2 || return 1
    echo "$PWD/$directory/bin/python"
}
