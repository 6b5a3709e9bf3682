#!/usr/bin/env bash
# Everything from one place: sets up the environment, then hands over to lib/workflow/cli.py, which
# says what there is to do (./run_all.sh --help).
set -euo pipefail
export CALLED_FROM="$PWD" # which paths in the command line are relative to
cd "$(dirname "${BASH_SOURCE[0]}")"
unset PYTHONSAFEPATH PYTHONHOME
export PYTHONPATH="$PWD"

fail() {
  echo "error: $1" >&2
  exit 1
}

find_python() {
  for python in python3 python3.13 python3.12 python3.11 python3.14; do
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && return
  done
  fail "Python 3.11, 3.12, 3.13 or 3.14 is needed"
}

# Install by uv where it is here and nothing (PIP_INDEX_URL, say) tells pip how; else by pip.
install() {
  if [[ -z "${!PIP_*}" ]] && command -v uv >/dev/null && uv pip install --quiet --python "$prefix" "$@"; then return; fi
  python -m pip --version >/dev/null 2>&1 || python -m ensurepip >/dev/null 2>&1 ||
    fail "the environment $prefix has no pip; add it, or use another"
  python -m pip install --quiet "$@"
}

# Install torch, whose build depends on the machine, by hash: without a GPU the CPU's build where pip
# finds it, else PyPI's; then what that build needs. Another index has hashes of its own.
install_torch() {
  [[ -z "${PIP_NO_INDEX:-}" ]] || fail "this environment has no torch of 2.10 or newer, and without the internet none can be installed; take an image that has one, or turn the internet on"
  if [[ -z "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}" ]]; then
    (! command -v nvidia-smi >/dev/null && install --no-deps --require-hashes -r requirements-torch-cpu.lock 2>/dev/null) ||
      install --no-deps --require-hashes -r requirements-torch.lock
  fi
  install "$(grep -o '^torch==[0-9.]*' requirements-torch.lock)"
}

case " $* " in *" -h "* | *" --help "*) find_python; exec "$python" -m lib.workflow.cli "$@" ;; esac

if [[ ! -w "${HOME:-}" || ! -d "${HOME:-}" ]]; then
  mkdir -p runs/.home 2>/dev/null || fail "$PWD cannot be written; copy the repository elsewhere"
  export HOME="$PWD/runs/.home" # Jupyter and Matplotlib keep their settings there
  echo "HOME is no folder that can be written; using runs/.home"
fi
if [[ -z "${VIRTUAL_ENV:-}" && "${CONDA_DEFAULT_ENV:-base}" == base ]]; then
  if [[ ! -x .venv/bin/python ]]; then
    find_python
    echo "Making an environment in .venv"
    "$python" -m venv .venv >/dev/null || fail "no environment could be made in .venv"
  fi
  export VIRTUAL_ENV="$PWD/.venv" PATH="$PWD/.venv/bin:$PATH"
fi
# Install what a lock says, once per lock: what runs a study, or for tests that and what they need.
lock=requirements.lock
[[ "${1:-}" != test ]] || lock=requirements-dev.lock
prefix="$(python -c 'import sys; print(sys.prefix)')"
if ! cmp -s "$lock" "$prefix/.embedding-norm-$lock"; then
  echo "Installing torch and the packages of $lock"
  python -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)' 2>/dev/null ||
    install_torch
  install --no-deps --require-hashes -r "$lock"
  cp requirements.lock "$prefix/.embedding-norm-requirements.lock" # which the other holds as well
  cp "$lock" "$prefix/.embedding-norm-$lock"
fi
exec python -m lib.workflow.cli "$@"
