"""Which code a run is of: keys that change with a byte of a source that counts, and the commit."""

import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from lib.config import code
from lib.config.io import ROOT, write_json
from lib.config.yaml import ConfigError

TRAIN, MEASURE = "train", "measure"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of what the keys are of."""
    top = tmp_path / "copy"
    shutil.copytree(ROOT / "lib", top / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    (top / "notebooks").mkdir()
    shutil.copyfile(ROOT / "notebooks/02_train.ipynb", top / "notebooks/02_train.ipynb")
    monkeypatch.setattr(code, "ROOT", top)
    monkeypatch.setattr(code, "CHECKOUT", top)
    monkeypatch.setattr(code, "NOTEBOOKS", top / "notebooks")
    return top


def keys():
    for function in (code.imported_code, code.train_key, code.measure_key, code.git_state):
        function.cache_clear()
    return {TRAIN: code.train_key(), MEASURE: code.measure_key()}


def state():
    code.git_state.cache_clear()
    return code.git_state()


def append(file, text="# a comment\n"):
    file.write_text(file.read_text("utf-8") + text, "utf-8")


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        *((f"lib/config/{name}.py", {TRAIN}) for name in ("schema", "study", "yaml")),
        *((f"lib/data/{name}.py", {TRAIN}) for name in ("text", "tokens")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("model", "trainer", "checkpoint")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("machine", "distributed")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("graph", "optim")),
        ("lib/train/diagnostics.py", {TRAIN}),  # the curve is taken in training
        *((f"lib/train/{name}.py", {MEASURE}) for name in ("evaluate", "lm_eval")),
        *((f"lib/data/{name}.py", {MEASURE}) for name in ("suite", "tasks")),
        *((f"lib/{name}.py", {MEASURE}) for name in ("results", "config/metrics")),
        *((f"lib/config/{name}.py", set()) for name in ("plan", "preregistration", "code", "io")),
        *((f"lib/{name}.py", set()) for name in ("stats/verdict", "figures/style")),
        *((f"lib/{name}", set()) for name in ("README.md", "sweep/sweep.py")),
    ],
)
def test_a_key_changes_with_each_source_that_it_is_of_and_with_no_other(file, changed, tree):
    before = keys()
    append(tree / file)
    assert {name for name, key in keys().items() if key != before[name]} == changed


LIVE = "lib.sweep.live"  # is told of steps that are made, and draws them
HARMLESS = {
    "lib/__init__.py": "says how Python imports lib",
    "lib/config/__init__.py": "imports nothing",
    "lib/data/__init__.py": "imports nothing",
    "lib/train/__init__.py": "imports nothing",
    "lib/config/code.py": "asks for keys, commit and variables, which stand in the result",
    "lib/config/io.py": "finds and writes files; the SHA-256 of every text stands in the result",
    "lib/config/plan.py": "draws seeds and hashes the plan, which stand in the result",
    "lib/results.py": "says which fields files have, of a run that trains",
}
"""What training imports and no train key is of, and why it decides neither weights nor curve."""
OF_MEASURES = {"lib/results.py", "lib/data/__init__.py", "lib/train/__init__.py"}
"""Those of them that the measure key is of."""


def imported_by_cells(first, last):
    """The files of `lib` that cells of 02_train import up to the one that calls `last`, and that
    those import in turn, inside functions too; from the cell after the one that calls `first` on.
    """
    cells = [
        "".join(cell["source"])
        for cell in json.loads((ROOT / "notebooks/02_train.ipynb").read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    calls = [i for i, text in enumerate(cells) if f" {first}" in text or f" {last}" in text]
    text = "\n".join(cells[calls[-2] + 1 if first else 0 : calls[-1] + 1])
    graph, found = grimp.build_graph("lib", cache_dir=None), set()
    todo = {*re.findall(r"(?:from|import) (lib[\w.]*)", text)} - {LIVE}
    while todo:
        module = todo.pop()
        found.add(module)
        package = module.rpartition(".")[0]  # whose __init__ is imported first
        todo |= {*graph.find_modules_directly_imported_by(module), package} - found - {""}
    paths = [ROOT / name.replace(".", "/") for name in found]
    files = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in paths]
    return {path.relative_to(ROOT).as_posix() for path in files}


@pytest.mark.parametrize(
    ("first", "last", "counts", "harmless"),
    [
        (None, "train(", {TRAIN}, HARMLESS),
        ("train(", "write_result(", {TRAIN, MEASURE}, {*HARMLESS} - OF_MEASURES),
    ],
)
def test_what_is_imported_is_of_a_key_or_is_named_as_harmless(first, last, counts, harmless, tree):
    """An import that decides weights, the curve or a measure cannot be forgotten."""
    imported, before = imported_by_cells(first, last), keys()
    without_key = set()
    for name in imported:
        source = (tree / name).read_text("utf-8")
        append(tree / name)
        if not {key for key, value in keys().items() if value != before[key]} & counts:
            without_key.add(name)
        (tree / name).write_text(source, "utf-8")
    assert without_key == {*harmless}


def test_keys_are_of_the_cells_up_to_the_one_that_trains_and_the_one_with_the_result(tree):
    notebook = tree / "notebooks" / "02_train.ipynb"
    content = json.loads(notebook.read_text("utf-8"))
    sources = ["".join(cell["source"]) for cell in content["cells"]]
    trains = next(i for i, text in enumerate(sources) if " train(" in text)
    writes = next(i for i, text in enumerate(sources) if "write_result(" in text)
    before = keys()
    for i, cell in enumerate(content["cells"]):
        is_code = cell["cell_type"] == "code"
        asks = "parameters" in cell["metadata"].get("tags", [])
        expected = {TRAIN} if i <= trains else {MEASURE} if i <= writes else set()
        text = sources[i]
        cell["source"] = text + "\n# another line"
        notebook.write_text(json.dumps(content), "utf-8")
        cell["source"] = text
        changed = {name for name, key in keys().items() if key != before[name]}
        assert changed == (expected if is_code and not asks else set()), text


def test_a_key_asks_neither_git_nor_when_a_file_was_written(tree):
    before = keys()
    for file in tree.rglob("*.py"):
        file.touch()
    assert keys() == before
    assert code.git_state() == {"commit": None, "clean": None}
    (tree / "lib" / "VERSION").write_text("a" * 40 + "\n", "utf-8")  # of a packed tree
    keys()
    assert code.git_state() == {"commit": "a" * 40, "clean": None}


def test_git_names_the_commit_and_whether_what_runs_is_as_committed(parameters, monkeypatch):
    parameters.study()
    parameters.plan()
    commit = parameters.commit()
    assert state() == {"commit": commit, "clean": True}
    (parameters.top / "README.md").write_text("prose", "utf-8")
    (parameters.top / "runs" / "s").mkdir(parents=True)
    (parameters.top / "runs" / "s" / "suite.lock").touch()  # a sweep leaves such
    assert state()["clean"] is True
    (parameters.top / "lib" / "new").mkdir(parents=True)
    (parameters.top / "lib" / "new" / "module.py").write_text("x = 1", "utf-8")
    assert state()["clean"] is False  # untracked, and Python would import it
    # In what a sweep executes, git is not asked again: not in its copy, nor in an arm's worktree.
    told = {"commit": commit, "clean": False}, {"commit": commit, "clean": True}
    assert code.ask_git() == dict(zip(("code", "parameters"), told, strict=True))
    write_json(parameters.top / "runs" / "sweep.json", {"git": code.ask_git()})
    parameters.commit()
    assert code.plan_log("plän.yaml").startswith(commit[:7])
    assert code.plan_log("q.yaml") == "git knows no commit of it"
    kept = parameters.top / "runs" / ".code"
    for name, value in (("SWEEP", kept.parent / "sweep.json"), ("COPIES", kept)):
        monkeypatch.setattr(code, name, value)
    for name, found in (("0123456789abcdef", told[0]), (commit, told[1] | {"code": commit})):
        monkeypatch.setattr(code, "ROOT", kept / name)
        assert state() == found


@pytest.mark.parametrize(
    "hidden",
    [
        "config --global core.excludesFile HOME/ignored",
        "config core.trustctime false",
        "config core.fsmonitor HOME/hook",
        "update-index --assume-unchanged lib/old.py",
        "update-index --skip-worktree lib/old.py",
        "config filter.own.clean HOME/clean",
        "replace HEAD HEAD~",
        "GIT_DIR",
        "GIT_INDEX_FILE",
        "GIT_CONFIG_COUNT",
    ],
)
def test_no_setting_of_git_hides_a_change(hidden, parameters, tmp_path_factory, monkeypatch):
    """Neither of a file that git knows nor of a new one; nor does it name another commit."""
    home, old = tmp_path_factory.mktemp("home"), parameters.top / "lib" / "old.py"
    monkeypatch.setenv("HOME", str(home))
    (home / "ignored").write_text("lib\n", "utf-8")
    (home / "hook").write_text("#!/bin/sh\ntouch $HOME/executed; echo x\n", "utf-8")
    (home / "clean").write_text("#!/bin/sh\nprintf 'x = 1'\n", "utf-8")
    (home / "hook").chmod(0o755)
    (home / "clean").chmod(0o755)
    old.parent.mkdir()
    parameters.commit()
    (parameters.top / ".git/info/attributes").write_text("*.py filter=own", "utf-8")
    old.write_text("x = 1", "utf-8")
    commit = parameters.commit()
    if hidden.startswith("GIT_"):
        monkeypatch.setenv(hidden, str(home / "other"))
    else:
        parameters.git(*hidden.replace("HOME", str(home)).split())
    new = old.with_name("new.py")
    for file, text in ((old, "x = 1"), (old, "x = 2"), (old, "x = 1"), (new, "")):
        when = old.stat().st_mtime_ns
        file.write_text(text, "utf-8")
        os.utime(file, ns=(when, when))
        assert state() == {"commit": commit, "clean": text == "x = 1"}
    assert not (home / "executed").exists()


IMPORTED = ("x.py", "x.pyc", "x.abi3.so", "x/__init__.py", "x/__init__.pyc", "ruamel/x/__init__.py")


@pytest.mark.parametrize("file", [*IMPORTED, "scripts/x.py", "tests/x/__init__.py", "x.md"])
def test_what_python_would_import_is_as_committed_or_told(file, parameters, tmp_path_factory):
    """Though it is ignored, or a link to what lies elsewhere."""
    (parameters.top / ".gitignore").write_text("x*\n", "utf-8")
    parameters.commit()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / file
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    elsewhere.touch()
    top = Path(file).parts[0]
    (parameters.top / top).symlink_to(elsewhere.parents[len(Path(file).parts) - 1] / top)
    linked = state()["clean"]
    (parameters.top / top).unlink()
    (parameters.top / file).parent.mkdir(parents=True, exist_ok=True)
    (parameters.top / file).touch()
    assert [linked, state()["clean"]] == [file not in IMPORTED] * 2


HOSTILE = (
    "PYTHONSTARTUP PYTHONOPTIMIZE PYTHONPYCACHEPREFIX PYTHONIOENCODING PYTHONHOME PYTHONHASHSEED"
    " MATPLOTLIBRC MPLCONFIGDIR MPLBACKEND GIT_DIR GIT_CONFIG_COUNT JUPYTER_CONFIG_PATH IPYTHONDIR"
    " JPY_PARENT_PID BASH_ENV FORCE_COLOR COLUMNS SNAKEMAKE_PROFILE RANK WORLD_SIZE PET_NNODES"
)
NUMERIC = (
    "MKL_CBWR OMP_DYNAMIC GOMP_SPINCOUNT KMP_AFFINITY ONEDNN_MAX_CPU_ISA DNNL_DEFAULT_FPMATH_MODE"
    " ATEN_CPU_CAPABILITY NVIDIA_TF32_OVERRIDE TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCHDYNAMO_DISABLE"
    " PYTORCH_JIT OPENBLAS_CORETYPE NPY_DISABLE_CPU_FEATURES CUBLASLT_LOG_LEVEL CUDA_FORCE_PTX_JIT"
    " MALLOC_PERTURB_ LD_PRELOAD LD_AUDIT"
)
REACHES = (
    "NVIDIA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_MPS_LOG_DIRECTORY PYTORCH_CUDA_ALLOC_CONF"
    " TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR SLURM_JOB_ID HF_HOME HSA_PATH LANG SSH_AUTH_SOCK"
)


def test_what_code_does_not_inherit_is_listed_and_what_may_move_bits_is_told(monkeypatch, tmp_path):
    asked = {"https_proxy": "http://proxy", "SSL_CERT_FILE": "/cert", "CUDA_VISIBLE_DEVICES": "1",
             "LD_LIBRARY_PATH": "/opt/lib", "NCCL_ALGO": "Ring", "TRITON_INTERPRET": "0",
             "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}  # fmt: skip
    asked |= dict.fromkeys(REACHES.split(), "1")
    fixed = {"PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1", "PYTHONPATH": str(ROOT)}
    hostile = dict.fromkeys(
        [*HOSTILE.split(), *NUMERIC.split(), "CUBLAS_WORKSPACE_CONFIG", "LC_ALL"], "1"
    )
    monkeypatch.setattr(os, "environ", hostile | asked | {"HOME": "/root"})
    found = code.environment(STUDY_OUTPUT="x")
    assert found.items() >= (asked | fixed | {"HOME": "/root", "STUDY_OUTPUT": "x"}).items()
    assert found.keys() & {*HOSTILE.split(), *NUMERIC.split()} == set()
    assert (found["CUBLAS_WORKSPACE_CONFIG"], found["LC_ALL"]) == (":4096:8", "C.UTF-8")
    hashed = code.digest("/opt/lib")[:12]  # no machine's folders
    told = {"LD_LIBRARY_PATH": hashed, "NCCL_ALGO": "Ring", "TRITON_INTERPRET": "0",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}  # fmt: skip
    numeric = dict.fromkeys([*NUMERIC.split(), "CUBLAS_WORKSPACE_CONFIG"], "1")
    assert code.variables() == told | numeric
    monkeypatch.setattr(os, "environ", found)
    assert code.variables() == told
    for file in ("profile_default/startup/0.py", "profile_default/ipython_config.py", "own.pth"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    before = code.start_up_files()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert {*code.start_up_files()} - {*before} == {"0.py", "ipython_config.py", "own.pth"}


@pytest.mark.parametrize("mode", ["TIMESTAMP", "UNCHECKED_HASH", "CHECKED_HASH"])
@pytest.mark.parametrize("name", ["probe", "config/probe", "config/__init__"])
def test_no_compiled_file_runs_in_place_of_its_source(mode, name, tree):
    """Though time, size and hash, by which Python takes it for its source's, are the same."""
    source, other = tree / "lib" / f"{name}.py", tree / "other.py"
    source.write_text("value = 2", "utf-8")
    other.write_text("value = 1", "utf-8")
    os.utime(other, ns=(source.stat().st_atime_ns, source.stat().st_mtime_ns))
    kind = py_compile.PycInvalidationMode[mode]
    made = [Path(py_compile.compile(str(f), invalidation_mode=kind)) for f in (source, other)]
    compiled = made[0].read_bytes()[:16] + made[1].read_bytes()[16:]
    made[0].write_bytes(compiled)
    source.with_suffix(".so").touch()
    module = f"lib.{name}".replace("/", ".").removesuffix(".__init__")
    command = [sys.executable, "-c", f"from {module} import value; print(value)"]
    assert subprocess.check_output(command, cwd=tree, env={"PYTHONPATH": str(tree)}) == b"2\n"
    assert made[0].read_bytes() == compiled


def test_kernels_compile_the_library_s_first_file_anew_and_have_a_short_folder(tree, monkeypatch):
    """The path of a socket has at most 107 bytes, however many characters."""
    py_compile.compile(str(tree / "lib" / "__init__.py"))
    monkeypatch.setattr("tempfile.tempdir", f"/tmp/{'ü' * 40}")
    with code.kernel_environment(1) as folder:
        assert len(os.fsencode(folder)) < 80
        assert not list((tree / "lib").glob("__pycache__/*"))


OUTSIDE = (
    "include: ../base.yaml", "data_dir: ..", "data_files: {test: a/../../x}",
    "data_files: [/data/x.jsonl]", 'data_files: "/x.jsonl"', "data_dir: ~/data",
    "data_files: file:///x", "data_files: //x/y", "data_dir: /my-data",
)  # fmt: skip


def test_tasks_of_one_s_own_are_hashed_and_asked_once_they_are_allowed(tmp_path, monkeypatch):
    allowed = tmp_path / "allowed-tasks.txt"
    monkeypatch.setattr(code, "CHECKOUT", tmp_path)
    monkeypatch.setattr(code, "corpus_places", lambda name: [tmp_path / name])
    monkeypatch.setattr("sys.pycache_prefix", None)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "items.jsonl").write_text("{}", "utf-8")
    (tmp_path / "tasks" / "own.yaml").write_text("task: own", "utf-8")
    first = code.tasks_hash("tasks")
    (tmp_path / "tasks" / "__pycache__").mkdir()
    (tmp_path / "tasks" / "__pycache__" / "own.pyc").write_text("", "utf-8")
    (tmp_path / "tasks" / "._own.yaml").write_text("task: own", "utf-8")  # which is not read
    assert code.tasks_hash("tasks") == first
    (tmp_path / "tasks" / "items.jsonl").write_text("{} ", "utf-8")
    assert code.tasks_hash("tasks") != first
    assert code.tasks_hash(None) is None
    code.require_allowed(None)
    changes = {"own.yaml": "task: other", "d/x": ""}
    changes["__pycache__/x"] = ""
    for name, text in changes.items():
        (tmp_path / "tasks" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tasks" / name).write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=r"read those in tasks; .* data/allowed-tasks.txt"):
            code.require_allowed("tasks")
        allowed.write_text(f"{'0' * 64}\n{code.tasks_hash('tasks')}\n", "utf-8")
        code.require_allowed("tasks")
    for text in OUTSIDE:
        (tmp_path / "tasks" / "own.yaml").write_text(text, "utf-8")
        with pytest.raises(ConfigError, match=r"own.yaml names a file outside tasks"):
            code.require_allowed("tasks")
    (tmp_path / "tasks" / "own.yaml").write_text("doc_to_text: 'he/she ... or 1/2 / 3?'", "utf-8")
    (tmp_path / "tasks" / "linked").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(ConfigError, match=r"linked names a file outside tasks"):
        code.require_allowed("tasks")
