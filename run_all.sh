#!/usr/bin/env bash
# Everything from one place. See usage() below, or ./run_all.sh --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

TORCH="torch==2.13.0" # not in the lock: which build is right depends on the machine

usage() {
  cat <<'TEXT'
./run_all.sh [params/NAME.yaml …] [--jobs N] [any Snakemake flag]
    Set up, run the studies named (default: params/final.yaml), analyse, draw, archive.
    A rerun continues what was stopped and redoes nothing that is done.
./run_all.sh test [--fast | --all] [any pytest flag]
    Run the tests: those that take seconds, the usual ones, or every one.
./run_all.sh verify [NAME …] [--redraw] [--retrain N | STUDY/ARM/SEED …]
    Compute every published number again from the record; execute 01 and 04 again; train runs again.
./run_all.sh freeze PLAN               Fix the studies of a plan in params/plans/ and draw their seeds.
./run_all.sh paper                     Build the paper from the results, as PDF and LaTeX.
./run_all.sh record                    Build the lab record, the site of all studies and runs.
./run_all.sh --help                    This text.

Studies come first, flags after them. --jobs is the number of runs side by side (default: one per
GPU, else one per core). Useful Snakemake flags: -n (only tell what would run), --forcerun train
(execute the training notebooks again, from their checkpoints), --profile params/slurm (a cluster).
Without an active environment, one is made in .venv.
TEXT
}

# Install what the lock says, once per lock.
set_up() {
  if [[ -z "${VIRTUAL_ENV:-}" && "${CONDA_DEFAULT_ENV:-base}" == base ]]; then
    if [[ ! -x .venv/bin/python ]]; then
      local python=""
      for candidate in python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
          python=$candidate
          break
        fi
      done
      [[ -n "$python" ]] || { echo "error: Python 3.11, 3.12 or 3.13 is needed" >&2; exit 1; }
      echo "Making an environment in .venv"
      "$python" -m venv .venv
    fi
    export VIRTUAL_ENV="$PWD/.venv" PATH="$PWD/.venv/bin:$PATH"
  fi
  local stamp
  stamp="$(python -c 'import sys; print(sys.prefix)')/.embedding-norm-lock"
  if ! cmp -s requirements.lock "$stamp"; then
    echo "Installing torch and the packages of requirements.lock"
    python -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)' 2>/dev/null ||
      python -m pip install --quiet "$TORCH"
    python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
    cp requirements.lock "$stamp"
  fi
}

case "${1:-}" in
  -h | --help) usage ;;
  test)
    shift
    set_up
    marks="not long and not benchmark"
    case "${1:-}" in
      --fast) shift; marks="not slow and $marks" ;;
      --all) shift; marks="not benchmark" ;;
    esac
    exec python -m pytest -n auto --dist loadfile -m "$marks" "$@"
    ;;
  verify)
    shift
    set_up
    [[ " $* " == *" --retrain "* ]] && exec python -m lib.workflow.retrain "$@"
    exec python -m lib.publish.verify "$@"
    ;;
  paper)
    set_up
    exec python -m lib.publish.paper
    ;;
  freeze)
    shift
    set_up
    exec python -m lib.workflow.freeze "$@"
    ;;
  record)
    shift
    set_up
    exec python -m lib.publish.site "$@"
    ;;
  *)
    set_up
    exec python -m lib.workflow.sweep "$@"
    ;;
esac
