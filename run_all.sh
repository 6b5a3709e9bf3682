#!/usr/bin/env bash
# Everything from one place. See usage() below, or ./run_all.sh --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'TEXT'
./run_all.sh [params/NAME.yaml …] [--jobs N] [--stop-after HOURS] [any Snakemake flag]
    Set up, run the studies named (default: params/final.yaml), analyse, draw, archive.
    A rerun continues what was stopped and redoes nothing that is done.
./run_all.sh test [--fast | --all] [any pytest flag]
    Run the tests: those that take seconds, the usual ones, or every one.
./run_all.sh test --mutants N [--seed S] [--fast | --all] [lib/FILE.py …] [tests/… …]
    Change N lines of lib/ drawn at random, one at a time in a copy, and tell which test noticed.
./run_all.sh verify [NAME …] [--redraw] [--retrain N | STUDY/ARM/SEED …]
    Compute every published number again from the record; execute 01 and 04 again; train runs again.
./run_all.sh analyse NAME …            Analyse and draw recorded studies again.
./run_all.sh import FILE
    Take a study that ran elsewhere into the record: the zip that 00_kaggle leaves, checked first.
./run_all.sh wheels                    Download what a Kaggle session without internet installs.
./run_all.sh freeze PLAN               Fix the studies of a plan (params/plans/), draw their seeds.
./run_all.sh estimate STUDY [--vocabulary N] [--price P]
    Say what a study takes before it runs: arithmetic, memory, disk, time here and on GPUs.
./run_all.sh export STUDY/ARM/SEED --to DIR
    Write a run's model as a folder that Hugging Face's transformers load as a GPT-2.
./run_all.sh pack STUDY                Pack the weights of a study's runs into one archive, with hashes.
./run_all.sh paper [PAPER …]           Build papers from the results, as PDF and LaTeX; begin new ones.
./run_all.sh record [PAPER …]          Build the lab record: a site of a paper's studies and runs.
./run_all.sh --help                    This text.

Studies and flags come in any order. --jobs is the number of runs side by side (default: one per
core; on GPUs as many as cores allow, of 4 GiB each; --runs-per-gpu N for runs that need more or
less). --stop-after HOURS ends a sweep early and cleanly. Useful Snakemake flags: -n (only tell what
would run), --profile params/slurm (a cluster); --snakemake-help lists them all. Ctrl-C stops
everything; a plain rerun continues.
Without an active environment, one is made in .venv.
TEXT
}

fail() {
  echo "error: $1" >&2
  exit "${2:-1}"
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

# Install what the lock says, once per lock.
set_up() {
  unset PYTHONSAFEPATH PYTHONHOME
  export PYTHONPATH="$PWD" # `python -m lib…`, whatever the folder it is called from
  if [[ ! -w "${HOME:-}" || ! -d "${HOME:-}" ]]; then
    mkdir -p runs/.home 2>/dev/null || fail "$PWD cannot be written; copy the repository elsewhere"
    export HOME="$PWD/runs/.home" # Jupyter and Matplotlib keep their settings there
    echo "HOME is no folder that can be written; using runs/.home"
  fi
  if [[ -z "${VIRTUAL_ENV:-}" && "${CONDA_DEFAULT_ENV:-base}" == base ]]; then
    if [[ ! -x .venv/bin/python ]]; then
      local python=""
      for candidate in python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
          python=$candidate
          break
        fi
      done
      [[ -n "$python" ]] || fail "Python 3.11, 3.12 or 3.13 is needed"
      echo "Making an environment in .venv"
      "$python" -m venv .venv >/dev/null || fail "no environment could be made in .venv"
    fi
    export VIRTUAL_ENV="$PWD/.venv" PATH="$PWD/.venv/bin:$PATH"
  fi
  local stamp
  stamp="$(python -c 'import sys; print(sys.prefix)')/.embedding-norm-lock"
  if ! cmp -s requirements.lock "$stamp"; then
    python -m pip --version >/dev/null 2>&1 || python -m ensurepip >/dev/null 2>&1 ||
      fail "the environment $(python -c 'import sys; print(sys.prefix)') has no pip; add it, or use another"
    echo "Installing torch and the packages of requirements.lock"
    python -c 'import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)' 2>/dev/null ||
      install_torch
    python -m pip install --quiet --no-deps --require-hashes -r requirements.lock
    cp requirements.lock "$stamp"
  fi
}

for word in "$@"; do
  case "$word" in -h | --help) usage; exit 0 ;; esac
done
case "${1:-}" in
  test)
    shift
    for word in "$@"; do
      [[ "$word" != --mutants ]] || { set_up; exec python -m tests.mutants "$@"; }
    done
    marks="not long and not benchmark" words=()
    for word in "$@"; do
      case "$word" in
        --fast) marks="not slow and not long and not benchmark" ;;
        --all) marks="not benchmark" ;;
        *) words+=("$word") ;;
      esac
    done
    set_up
    # Many of the slow tests wait for processes that they have started: one worker more than cores.
    [[ "$marks" == *"not slow"* ]] ||
      export PYTEST_XDIST_AUTO_NUM_WORKERS="${PYTEST_XDIST_AUTO_NUM_WORKERS:-$(python -c 'import os; print(1 + (os.cpu_count() or 1))')}"
    exec python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "$marks" ${words+"${words[@]}"}
    ;;
  verify)
    shift
    for word in "$@"; do
      case "$word" in
        --redraw | --retrain) ;;
        -*) fail "verify takes names of studies, --redraw and --retrain, not '$word'" 2 ;;
      esac
    done
    set_up
    [[ " $* " == *" --retrain "* ]] && exec python -m lib.workflow.retrain "$@"
    exec python -m lib.publish.verify "$@"
    ;;
  paper | record)
    command=$1
    shift
    for word in "$@"; do
      [[ "$word" != -* ]] || fail "$command takes names of papers, not '$word'" 2
    done
    set_up
    exec python -m "lib.publish.${command/record/site}" "$@"
    ;;
  estimate)
    shift
    set_up
    exec python -m lib.workflow.estimate "$@"
    ;;
  export | pack)
    module="lib.workflow.$1"
    shift
    set_up
    cd "$OLDPWD" # which --to is relative to
    exec python -m "$module" "$@"
    ;;
  import)
    [[ $# == 2 ]] || fail "import takes one zip file" 2
    file=$2
    [[ "$file" == /* ]] || file="$OLDPWD/$file"
    set_up
    exec python -m lib.workflow.importing "$file"
    ;;
  wheels) # for the Python of Kaggle's image; with no platform of ours, sources are taken as well
    [[ $# == 1 ]] || fail "wheels takes nothing more, and there is '$2'" 2
    set_up
    python -m pip download --quiet --no-deps --require-hashes --dest wheels \
      --implementation cp --python-version 3.12 --platform any \
      --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -r requirements.lock
    echo "wheels/ holds $(find wheels -type f | wc -l) files; upload it as a Kaggle dataset"
    ;;
  freeze)
    [[ $# == 2 ]] || fail "freeze takes one plan of params/plans/" 2
    set_up
    exec python -m lib.workflow.freeze "$2"
    ;;
  analyse)
    shift
    set_up
    exec python -m lib.workflow.reanalysis "$@"
    ;;
  *)
    set_up
    exec python -m lib.workflow.sweep "$@"
    ;;
esac
