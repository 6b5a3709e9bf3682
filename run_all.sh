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
  for python in python3 python3.13 python3.12 python3.11; do
    "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && return
  done
  fail "Python 3.11, 3.12 or 3.13 is needed"
}

# Install torch, whose build depends on the machine, by hash where it comes from PyPI or is the CPU
# build of the lock; then what that build needs. Another index has hashes of its own.
install_torch() {
  [[ -z "${PIP_NO_INDEX:-}" ]] || fail "this environment has no torch of 2.10 or newer, and without the internet none can be installed; take an image that has one, or turn the internet on"
  if [[ -z "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}" ]]; then
    python -m pip install --quiet --no-deps --require-hashes -r requirements-torch.lock
  fi
  python -m pip install --quiet "$(grep -o '^torch==[0-9.]*' requirements-torch.lock)"
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
# Install what the lock says, once per lock.
prefix="$(python -c 'import sys; print(sys.prefix)')"
if ! cmp -s requirements.lock "$prefix/.embedding-norm-lock"; then
  python -m pip --version >/dev/null 2>&1 || python -m ensurepip >/dev/null 2>&1 ||
    fail "the environment $prefix has no pip; add it, or use another"
  echo "Installing torch and the packages of requirements.lock"
  python -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)' 2>/dev/null ||
    install_torch
  python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
  cp requirements.lock "$prefix/.embedding-norm-lock"
fi
exec python -m lib.workflow.cli "$@"
