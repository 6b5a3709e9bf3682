"""The code that made a run: keys that change with every byte of their sources, and the commit."""

import ast
import importlib
import json
import os
import shutil

import grimp
import pytest

from lib.config import environment, provenance
from lib.config.files import write_json
from lib.config.paths import ROOT

TRAIN, MEASURE = "train", "measure"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A copy of the files that the keys cover."""
    top = tmp_path / "copy"
    shutil.copytree(ROOT / "lib", top / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    (top / "notebooks").mkdir()
    shutil.copyfile(ROOT / "notebooks/02_train.ipynb", top / "notebooks/02_train.ipynb")
    monkeypatch.setattr(provenance, "ROOT", top)
    monkeypatch.setattr(provenance, "CHECKOUT", top)
    monkeypatch.setattr(provenance, "NOTEBOOKS", top / "notebooks")
    return top


def keys():
    for name in ("imported_code", "train_key", "measure_key", "git_state"):
        getattr(provenance, name).cache_clear()
    return {TRAIN: provenance.train_key(), MEASURE: provenance.measure_key()}


def state():
    provenance.git_state.cache_clear()
    return provenance.git_state()


def append(file, text="# a comment\n"):
    file.write_text(file.read_text("utf-8") + text, "utf-8")


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        *((f"lib/config/{name}.py", {TRAIN}) for name in ("schema", "study", "yaml")),
        *((f"lib/data/{name}.py", {TRAIN}) for name in ("text", "tokens", "cache")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("model", "trainer", "checkpoint")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("machine", "distributed")),
        *((f"lib/train/{name}.py", {TRAIN}) for name in ("graph", "optim")),
        ("lib/train/diagnostics.py", {TRAIN}),  # training makes the curve
        *((f"lib/train/{name}.py", {MEASURE}) for name in ("evaluate", "lm_eval")),
        *((f"lib/data/{name}.py", {MEASURE}) for name in ("suite", "tasks")),
        *((f"lib/{name}.py", {MEASURE}) for name in ("results", "config/metrics")),
        *((f"lib/config/{name}.py", set()) for name in ("plan", "claim", "provenance", "paths")),
        *((f"lib/{name}.py", set()) for name in ("stats/verdict", "figures/style")),
        *((f"lib/{name}", set()) for name in ("README.md", "sweep/sweep.py")),
    ],
)
def test_key_changes_with_its_own_sources_only(file, changed, tree):
    before = keys()
    append(tree / file)
    assert {name for name, key in keys().items() if key != before[name]} == changed


LIVE = "lib.sweep.live"  # only draws the steps that were made
HARMLESS = {
    "lib/__init__.py": "says how Python imports lib",
    "lib/config/__init__.py": "imports nothing",
    "lib/data/__init__.py": "imports nothing",
    "lib/train/__init__.py": "imports nothing",
    "lib/config/contrasts.py": "names arms and levels, which are in the result",
    "lib/config/environment.py": "sets variables; what may change bits is told",
    "lib/config/errors.py": "words messages",
    "lib/config/files.py": "reads and writes files whole",
    "lib/config/provenance.py": "asks for keys and commit, which are in the result",
    "lib/config/paths.py": "finds files; the SHA-256 of every text stands in the result",
    "lib/config/plan.py": "draws seeds and hashes the plan, which are in the result",
    "lib/results.py": "says which fields files have, of a run that trains",
}
"""What training imports and no train key is of, and why it decides neither weights nor curve."""
OF_MEASURES = {"lib/results.py", "lib/data/__init__.py", "lib/train/__init__.py"}
"""Those of them that the measure key is of."""


def imported_by_cells(first, last):
    """Return the files of `lib` that the cells of 02_train import, from the cell after the one that
    calls `first` to the one that calls `last`; also indirectly, and inside functions."""
    cells = [
        "".join(cell["source"])
        for cell in json.loads((ROOT / "notebooks/02_train.ipynb").read_text("utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    calls = [i for i, text in enumerate(cells) if f" {first}" in text or f" {last}" in text]
    text = "\n".join(cells[calls[-2] + 1 if first else 0 : calls[-1] + 1])
    graph, found = grimp.build_graph("lib", cache_dir=None), set()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    named = [(node.module, alias.name) for node in imports for alias in node.names]
    of_lib = [(importlib.import_module(m), name) for m, name in named if m.startswith("lib")]
    todo = {getattr(module, name).__module__ for module, name in of_lib} - {LIVE}
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
def test_every_import_is_in_a_key_or_listed_as_harmless(first, last, counts, harmless, tree):
    """No import that decides weights, the curve or a measure can be forgotten."""
    imported, before = imported_by_cells(first, last), keys()
    without_key = set()
    for name in imported:
        source = (tree / name).read_text("utf-8")
        append(tree / name)
        if not {key for key, value in keys().items() if value != before[key]} & counts:
            without_key.add(name)
        (tree / name).write_text(source, "utf-8")
    assert without_key == {*harmless}


def test_keys_cover_the_cells_up_to_training_and_result(tree):
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


def test_keys_depend_on_neither_git_nor_file_times(tree):
    before = keys()
    for file in tree.rglob("*.py"):
        file.touch()
    assert keys() == before
    assert provenance.git_state() == {"commit": None, "clean": None}
    (tree / "lib" / "VERSION").write_text("a" * 40 + "\n", "utf-8")  # as in a packed tree
    keys()
    assert provenance.git_state() == {"commit": "a" * 40, "clean": None}


def test_git_names_the_commit_and_whether_what_runs_is_as_committed(parameters, monkeypatch):
    parameters.study()
    parameters.plan()
    commit = parameters.commit()
    assert state() == {"commit": commit, "clean": True}
    (parameters.top / "README.md").write_text("prose", "utf-8")
    (parameters.top / "runs" / "s").mkdir(parents=True)
    (parameters.top / "runs" / "s" / "suite.lock").touch()  # a sweep leaves such files
    assert state()["clean"] is True
    (parameters.top / "lib" / "new").mkdir(parents=True)
    (parameters.top / "lib" / "new" / "module.py").write_text("x = 1", "utf-8")
    assert state()["clean"] is False  # untracked, and Python would import it
    # In what a sweep executes, git is not asked again: not in its copy, nor in an arm's worktree.
    told = {"commit": commit, "clean": False}, {"commit": commit, "clean": True}
    assert provenance.ask_git() == dict(zip(("code", "parameters"), told, strict=True))
    write_json(parameters.top / "runs" / "sweep.json", {"git": provenance.ask_git()})
    parameters.commit()
    assert provenance.plan_log("plän.yaml").startswith(commit[:7])
    assert provenance.plan_log("q.yaml") == "git knows no commit of it"
    kept = parameters.top / "runs" / ".code"
    for name, value in (("SWEEP", kept.parent / "sweep.json"), ("COPIES", kept)):
        monkeypatch.setattr(provenance, name, value)
    for name, found in (("0123456789abcdef", told[0]), (commit, told[1] | {"code": commit})):
        monkeypatch.setattr(provenance, "ROOT", kept / name)
        assert state() == found


HOSTILE = [
    "PYTHONSTARTUP", "PYTHONOPTIMIZE", "PYTHONPYCACHEPREFIX", "PYTHONIOENCODING", "PYTHONHOME",
    "PYTHONHASHSEED", "MATPLOTLIBRC", "MPLCONFIGDIR", "MPLBACKEND", "GIT_DIR",
    "GIT_CONFIG_COUNT", "JUPYTER_CONFIG_PATH", "IPYTHONDIR", "JPY_PARENT_PID", "BASH_ENV",
    "FORCE_COLOR", "COLUMNS", "SNAKEMAKE_PROFILE", "RANK", "WORLD_SIZE", "PET_NNODES",
]  # fmt: skip
NUMERIC = [
    "MKL_CBWR", "OMP_DYNAMIC", "GOMP_SPINCOUNT", "KMP_AFFINITY", "ONEDNN_MAX_CPU_ISA",
    "DNNL_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY", "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCHDYNAMO_DISABLE", "PYTORCH_JIT",
    "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "CUBLASLT_LOG_LEVEL", "CUDA_FORCE_PTX_JIT",
    "MALLOC_PERTURB_", "LD_PRELOAD", "LD_AUDIT",
]  # fmt: skip
REACHES = [
    "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_LOG_DIRECTORY",
    "PYTORCH_CUDA_ALLOC_CONF", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "SLURM_JOB_ID",
    "HF_HOME", "HSA_PATH", "LANG", "SSH_AUTH_SOCK",
]  # fmt: skip


def test_environment_drops_variables_and_records_those_that_change_bits(monkeypatch, tmp_path):
    asked = {"https_proxy": "http://proxy", "SSL_CERT_FILE": "/cert", "CUDA_VISIBLE_DEVICES": "1",
             "LD_LIBRARY_PATH": "/opt/lib", "NCCL_ALGO": "Ring", "TRITON_INTERPRET": "0",
             "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}  # fmt: skip
    asked |= dict.fromkeys(REACHES, "1")
    fixed = {"PYTHONUTF8": "1", "PYTHONNOUSERSITE": "1", "PYTHONPATH": str(ROOT)}
    hostile = dict.fromkeys([*HOSTILE, *NUMERIC, "CUBLAS_WORKSPACE_CONFIG", "LC_ALL"], "1")
    monkeypatch.setattr(os, "environ", hostile | asked | {"HOME": "/root"})
    found = environment.environment(STUDY_OUTPUT="x")
    assert found.items() >= (asked | fixed | {"HOME": "/root", "STUDY_OUTPUT": "x"}).items()
    assert found.keys() & {*HOSTILE, *NUMERIC} == set()
    assert (found["CUBLAS_WORKSPACE_CONFIG"], found["LC_ALL"]) == (":4096:8", "C.UTF-8")
    hashed = provenance.digest("/opt/lib")[:12]  # no path of the machine
    told = {"LD_LIBRARY_PATH": hashed, "NCCL_ALGO": "Ring", "TRITON_INTERPRET": "0",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}  # fmt: skip
    numeric = dict.fromkeys([*NUMERIC, "CUBLAS_WORKSPACE_CONFIG"], "1")
    assert environment.variables() == told | numeric
    monkeypatch.setattr(os, "environ", found)
    assert environment.variables() == told
    for file in ("profile_default/startup/0.py", "profile_default/ipython_config.py", "own.pth"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    before = environment.start_up_files()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert {*environment.start_up_files()} - {*before} == {"0.py", "ipython_config.py", "own.pth"}


def test_kernels_have_a_short_folder(monkeypatch):
    """The limit for the path of a socket is 107 bytes, not characters."""
    monkeypatch.setattr("tempfile.tempdir", f"/tmp/{'ü' * 40}")
    with environment.kernel_environment(1) as folder:
        assert len(os.fsencode(folder)) < 80


def test_own_task_files_are_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "CHECKOUT", tmp_path)
    (tmp_path / "tasks/__pycache__").mkdir(parents=True)
    (tmp_path / "tasks/items.jsonl").write_text("{}", "utf-8")
    (tmp_path / "tasks/own.yaml").write_text("task: own", "utf-8")
    first = provenance.tasks_hash("tasks")
    for name in ("__pycache__/own.pyc", "._own.yaml"):  # no task is read from them
        (tmp_path / "tasks" / name).write_text("", "utf-8")
    assert provenance.tasks_hash("tasks") == first
    for name in ("items.jsonl", "utils.py", "deeper/own.yaml"):
        before = provenance.tasks_hash("tasks")
        (tmp_path / "tasks" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tasks" / name).write_text("other", "utf-8")
        assert provenance.tasks_hash("tasks") != before
    assert provenance.tasks_hash(None) is None
