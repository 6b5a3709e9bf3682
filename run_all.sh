#!/usr/bin/env bash
# One command for everything: makes an environment in .venv, installs the packages of the locks, and
# calls lib/sweep/cli.py. See ./run_all.sh --help.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # if called as: sh run_all.sh
set -euo pipefail
export CALLED_FROM="$PWD" # paths in the command line are relative to it
unset CDPATH
script="${BASH_SOURCE[0]}"
while [[ -L "$script" ]]; do # follow a link to this file, for example in ~/bin
  cd "$(dirname "$script")"
  script="$(readlink "${script##*/}")"
done
cd "$(dirname "$script")"
unset "${!PYTHON@}" # the user's settings of Python
export PYTHONPATH="$PWD" PYTHONUTF8=1 PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1

fail() {
  echo "error: $1" >&2
  exit 1
}

# Snakemake reads braces in a path as wildcards.
[[ "$PWD${STUDY_OUTPUT:-}${TMPDIR:-}" != *[{}]* ]] || fail "$PWD, or TMPDIR, has a { or } in its path; rename that folder"

find_python() {
  for python in python3 python3.13 python3.12 python3.11 python3.14; do
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && return
  done
  fail "no Python 3.11, 3.12, 3.13 or 3.14 was found; install one"
}

# Of the user's settings of pip and uv, keep those that say where packages come from, and pass pip's
# on to uv. Drop the others: user, target or prefix would install to another place.
keep_sources() {
  local name value told
  "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 ||
    fail "the environment $prefix has no pip; install it, or use another environment"
  for name in "${!PIP_@}" "${!UV_@}"; do
    case "$name" in
      *INDEX* | *LINKS | *CERT* | *PROXY | *HOST | *CACHE* | *TIMEOUT | *RETRIES | *KEYRING* | *TLS | *OFFLINE) ;;
      *CONFIG* | *LINK_MODE | *BREAK_SYSTEM_PACKAGES) ;; # some machines need these
      *) unset "$name" ;;
    esac
  done
  told="$(PIP_REQUIRE_VIRTUALENV=0 "$python" -m pip config list 2>/dev/null | LC_ALL=C sort -r)" || told="" # sorted: install. comes before global.
  for name in index-url extra-index-url find-links no-index cert client-cert proxy trusted-host cache-dir timeout break-system-packages; do
    value="$(sed -n "s/^[a-z:]*\.$name='\(.*\)'$/\1/p" <<<"$told" | head -n 1)"
    name="PIP_$(tr a-z- A-Z_ <<<"$name")"
    value="$(printf '%b' "$value" | tr '\n' ' ')" # several values are on several lines
    [[ -z "$value" || -n "${!name:-}" ]] || export "$name=${value# }"
  done
  export PIP_CONFIG_FILE=/dev/null
  [[ -z "${PIP_INDEX_URL:-}" ]] || export UV_DEFAULT_INDEX="$PIP_INDEX_URL"
  [[ -z "${PIP_EXTRA_INDEX_URL:-}" ]] || export UV_INDEX="$PIP_EXTRA_INDEX_URL" UV_INDEX_STRATEGY=unsafe-best-match # like pip
  [[ -z "${PIP_FIND_LINKS:-}" ]] || export UV_FIND_LINKS="${PIP_FIND_LINKS// /,}"
  [[ -z "${PIP_CERT:-}" ]] || export SSL_CERT_FILE="$PIP_CERT"
  [[ -z "${PIP_NO_INDEX:-}" ]] || export UV_NO_INDEX=1
}

# Install with uv, which is five times faster (pip installs it if it is missing), or else with pip.
install() {
  local quiet=()
  [[ -t 2 ]] || quiet=(--quiet) # no progress bars in a log
  "$python" -m uv --version >/dev/null 2>&1 ||
    "$python" -m pip install --quiet --no-deps --require-hashes -r requirements-uv.lock 2>/dev/null || true
  # A target or prefix in the user's uv.toml would install to another place, and no option overrides
  # it. If uv cannot read that file, it only warns.
  settings="$(cd / && "$python" -m uv pip install --show-settings --python "$python" pip 2>/dev/null)" &&
    ! grep -E '^ *(target|prefix): Some' <<<"$settings" >/dev/null || export UV_NO_CONFIG=1
  # From /, because our pyproject.toml tells uv to leave out torch. That is only for making the locks.
  (cd / && "$python" -m uv pip install "${quiet[@]}" --python "$python" "$@") ||
    "$python" -m pip install "${quiet[@]}" "$@"
}

# Install torch by hash. Without a GPU, install the CPU build if possible. PyPI has the CUDA build.
install_torch() {
  [[ -z "${PIP_NO_INDEX:-}" || -n "${PIP_FIND_LINKS:-}" ]] || fail "this environment has no torch 2.10 or newer, and there is no internet to install it from; turn the internet on, or use an image that has it"
  local cpu=(--no-deps --require-hashes -r "$PWD/requirements-torch-cpu.lock")
  (! command -v nvidia-smi >/dev/null &&
    (install "${cpu[@]}" || install --extra-index-url https://download.pytorch.org/whl/cpu "${cpu[@]}") 2>/dev/null) ||
    install --no-deps --require-hashes -r "$PWD/requirements-torch.lock"
  install "$(grep -o '^torch==[0-9.]*' requirements-torch.lock)" # adds the packages that this build needs
}

here="" dry="" words=()
for word in "$@"; do
  case "$word" in
    --here) here=yes && continue ;;
    -h | --help) find_python && exec "$python" -m lib.sweep.cli "$@" ;;
    -n | --dry-run) [[ "${1:-}" == test ]] || dry=yes ;;
  esac
  words+=("$word")
done
# Install into the active environment if it exists only for this: on Kaggle and Colab, and in the
# conda environment of environment.yml.
[[ -z "${KAGGLE_KERNEL_RUN_TYPE:-}${COLAB_RELEASE_TAG:-}" && "${CONDA_DEFAULT_ENV:-}" != embedding-norm ]] || here=yes

if [[ -n "$here" ]]; then
  find_python
elif [[ -x .venv/bin/python ]]; then
  python="$PWD/.venv/bin/python"
elif [[ -n "$dry" ]]; then
  fail "there is no environment in .venv yet, and -n does not make it; run ./run_all.sh setup"
else
  [[ -w . ]] || fail "$PWD cannot be written; copy it: cp -r '$PWD' ~/embedding-norm"
  find_python
  echo "Making an environment in .venv"
  "$python" -m venv .venv >/dev/null || fail "no environment could be made in .venv (Debian: apt install python3-venv)"
  python="$PWD/.venv/bin/python"
fi
prefix="$("$python" -c 'import sys; print(sys.prefix)')"
export PATH="$prefix/bin:$PATH"
if [[ "$prefix" == "$PWD/.venv" ]]; then
  export VIRTUAL_ENV="$prefix"
fi

# Install the packages of a lock, once per lock. Tests need more packages than studies do.
lock=requirements.lock needed="lib.sweep.sweep, lib.figures.study, lib.publish.paper, ipykernel, papermill, snakemake, torch"
[[ "${1:-}" != test ]] || lock=requirements-dev.lock needed="$needed, pytest, xdist"
if [[ -z "$dry" ]] && ! cmp -s "$lock" "$prefix/.embedding-norm-$lock"; then
  echo "Installing torch and the packages of $lock: a minute or two"
  keep_sources
  "$python" -c 'from importlib.metadata import version; assert [*map(int, version("torch").split(".")[:2])] >= [2, 10]' 2>/dev/null ||
    install_torch
  install --no-deps --require-hashes -r "$PWD/$lock"
  said="$("$python" -c "import $needed" 2>&1)" ||
    fail "the packages in $prefix do not work (${said##*$'\n'}); delete .venv and try again"
  cp requirements.lock "$prefix/.embedding-norm-requirements.lock" # the other lock includes it
  cp "$lock" "$prefix/.embedding-norm-$lock"
fi
[[ "${1:-}" != setup ]] || exit 0

if [[ ! -w "${HOME:-}" || ! -d "${HOME:-}" ]]; then
  mkdir -p runs/.home 2>/dev/null || fail "$PWD cannot be written; copy it: cp -r '$PWD' ~/embedding-norm"
  export HOME="$PWD/runs/.home" # Jupyter and Matplotlib keep their settings there
  echo "HOME cannot be written; using runs/.home instead"
fi
exec "$python" -m lib.sweep.cli "${words[@]}"
