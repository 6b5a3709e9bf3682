"""A campaign of forgeries: each one with manifests, index and root rewritten, each named. One for
every check runs with the usual tests, and all of them with `--all`."""

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from warnings import catch_warnings, simplefilter

import nbformat
import pandas as pd
import pytest
import yaml

from lib.analysis.runs import summarise
from lib.publish import paper
from lib.record import archive, build, provenance, record, runs, verify
from lib.record.record import RAW_ZIP, Record, as_table
from lib.record.runs import recorded_suites
from lib.results import attested, measures_of, read_raw, write_raw
from lib.study.inputs import unpack
from lib.study.io import sha256, write_json
from tests.conftest import Tree, run_git

pytestmark = pytest.mark.slow
STUDY = "sample"
Edit = Callable[[dict[str, Any]], object]


class Forger:
    """Somebody with a recorded study, who can write every file of it and knows every hash."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.paper = tree, tree.root / "papers" / "embedding-norm"
        self.record = self.paper / "record" / STUDY
        self.results = self.paper / "results" / f"{STUDY}.json"
        self.verdict = self.paper / "results" / f"{STUDY}.verdict.json"
        self.figures = self.paper / "figures" / STUDY

    def runs(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The result of every run."""
        with zipfile.ZipFile(self.record / RAW_ZIP) as packed:
            names = [name for name in packed.namelist() if name.endswith("/result.json")]
            runs = [json.loads(packed.read(name)) for name in names]
        return {(run["arm"], run["seed"]): run for run in runs}

    def notebook(self, arm: str = "none", seed: int = 0) -> Path:
        return self.record / arm / f"seed-{seed}" / "02_train.ipynb"

    def notebooks(self) -> list[Path]:
        return sorted(self.record.rglob("02_train.ipynb"))

    def in_json(self, path: Path, edit: Edit, indent: int | None = None) -> None:
        content = json.loads(path.read_text("utf-8"))
        edit(content)
        write_json(path, content, indent)

    def in_notebook(self, path: Path, edit: Callable[[Any], object]) -> None:
        content = nbformat.read(path, as_version=4)
        edit(content)
        write_json(path, content, indent=None)

    def in_shown_result(self, path: Path, edit: Edit) -> None:
        def change(content: Any) -> None:
            for cell in content.cells:
                for output in cell.get("outputs", []):
                    if "application/json" in output.get("data", {}):
                        edit(output["data"]["application/json"])

        self.in_notebook(path, change)

    def in_result(self, edit: Edit, arm: str = "none", seed: int = 0) -> None:
        """Edit the result of a run, and make the summary follow."""
        with self.unpacked() as folder:
            self.in_json(folder / arm / f"seed-{seed}" / "result.json", edit, indent=1)
        self.summarise()

    def in_verdict(self, edit: Edit) -> None:
        """Edit the verdict with a row for each row of its tables."""
        verdict = Record(STUDY, self.paper).verdict
        edit(verdict)
        tables = {name: as_table(each) for name, each in verdict.items()}
        write_json(self.verdict, tables, indent=None)

    def summarise(self) -> None:
        """Make the summary follow from the runs."""

        def change(content: dict[str, Any]) -> None:
            names = list(next(iter(content["summary"].values())))
            content["summary"] = summarise(list(self.runs().values()), names)

        self.in_json(self.results, change)

    def in_run(self, edit: Edit, arm: str = "none", seed: int = 0) -> None:
        """Edit a run wherever it stands."""
        self.in_result(edit, arm, seed)
        self.attest()

    def attest(self) -> None:
        """Make every notebook show the result of its run."""
        for (arm, seed), run in self.runs().items():
            path, shown = self.notebook(arm, seed), attested(run)
            self.in_shown_result(path, lambda content, shown=shown: content.update(shown))

    def in_every_run(self, edit: Edit) -> None:
        for path in self.notebooks():
            self.in_run(edit, path.parent.parent.name, int(path.parent.name[5:]))

    def in_raw(
        self, name: str, edit: Callable[[pd.DataFrame], object], follow: bool = True
    ) -> None:
        """Edit a raw file; its hash, and the measures that follow, wherever they stand."""
        with self.unpacked() as folder:
            raw = read_raw(folder / "none/seed-0")
            edit(raw[name])
            path = write_raw(folder / "none/seed-0", name, raw[name])
            changed = sha256(path)

        def change(run: dict[str, Any]) -> None:
            run["files"][path.name] = changed
            run["measures"] |= measures_of(raw) if follow else {}

        self.in_run(change)

    @contextmanager
    def unpacked(self) -> Iterator[Path]:
        """A folder with what `raw.zip` holds, of which the next one is made."""
        with TemporaryDirectory() as place:
            folder = Path(place)
            unpack(self.record / RAW_ZIP, folder)
            yield folder
            files = [path for path in folder.rglob("*") if path.is_file()]
            archive.pack(files, folder, self.record / RAW_ZIP)

    def everywhere(self, old: str, new: str) -> None:
        """Replace a text in every file of the record and the results."""
        with self.unpacked() as folder:
            files = [*folder.rglob("result.json"), *self.record.rglob("*.ipynb")]
            for path in [*files, self.results, self.verdict]:
                path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
        self.attest()

    def in_yaml(self, path: Path, edit: Edit) -> None:
        content = yaml.safe_load(path.read_text("utf-8"))
        edit(content)
        path.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")

    def python(self, code: str, *words: str) -> None:
        subprocess.run([sys.executable, "-c", code, *words], cwd=self.tree.root, check=True)

    def git(self, *words: str) -> str:
        return run_git(self.tree.root, *words)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Forged")


VERIFY = """
import inspect, subprocess, sys
from collections.abc import Iterator
from functools import wraps
from lib.publish import paper
from lib.record import archive, build, provenance, record, runs, verify
from lib.workflow import cli, verify as command
from lib.workflow.forked import variables, warm_process

def telling(check):
    name = f"{check.__module__.rpartition('.')[2]}.{check.__name__}"
    @wraps(check)
    def tell(*words, **options):
        yield from (f"{fault}  [{name}]" for fault in check(*words, **options))
    return tell

def seal(study):
    if record.Record(study).folder.is_dir():
        archive.write_manifest(study)
    return 0

found = {}
for module in (archive, build, paper, provenance, record.Record, runs, verify, command):
    for name, check in inspect.getmembers(module, inspect.isgeneratorfunction):
        if inspect.signature(check).return_annotation == Iterator[str]:
            setattr(module, name, found.setdefault(check, telling(check)))
whole = command.verify
with warm_process(variables(1), subprocess.DEVNULL):  # so that forks name them, too
    for line in sys.stdin:
        said, *words = line.split()
        texts = lambda study, **how: whole(study, **how | {"again": False})
        command.verify = texts if said == "texts" else whole
        print("ENDED", seal(*words) if said == "seal" else cli.main(["verify", *words]), flush=True)
"""


class Verifier:
    """`verify`, imported once, run as often as it is asked; behind every fault it names the check
    that found it. And `seal`, which writes manifest, index and root anew as the project does."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", VERIFY],
            cwd=root,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def seal(self) -> None:
        assert self("seal", STUDY)[0] == 0

    def verify(self, *words: str) -> tuple[int, str]:
        return self("verify", *words)

    def texts(self) -> tuple[int, str]:
        """Verify all, but make nothing of the study again."""
        return self("texts")

    def __call__(self, *words: str) -> tuple[int, str]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.startswith("ENDED"):
                return int(line.split()[1]), "".join(lines)
            lines.append(line)
        raise AssertionError("".join(lines))


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    """A study under a plan, run, recorded and committed, with a paper that quotes it."""
    tree = Tree(tmp_path_factory.mktemp("forged") / "embedding-norm")
    tree.spare_rehearsals()
    forger = Forger(tree)
    forger.in_yaml(
        shutil.copyfile(
            tree.root / "params/plans/preregistration.yaml", tree.root / "params/plans/plan.yaml"
        ),
        lambda plan: plan.update(
            confirmatory=[STUDY], seeds=[0, 1], families={"primary": [["layernorm", "none"]]}
        ),
    )
    smoke = yaml.safe_load((tree.root / "params/smoke.yaml").read_text("utf-8"))
    smoke["model"]["block_size"] = 48  # a context in which some tasks fit
    own = {"name": STUDY, "plan": "plan.yaml", "paper": "embedding-norm"}
    own["corpus"] = smoke["corpus"] | {"source": "data/own.txt"}
    write = "import lib.data.text as c, pathlib as p; data = p.Path('data'); data.mkdir()\n"
    write += "from lib.study.schema import CorpusConfig\n"
    text = "c.load_corpus(CorpusConfig(source='synthetic')).text"
    forger.python(write + f"(data / 'own.txt').write_bytes({text}.encode())")
    text = yaml.safe_dump(smoke | own)
    (tree.root / f"params/{STUDY}.yaml").write_text(text, "utf-8")
    quote = "{{ sample.summary.none.perplexity | mean_sd('.2f') }}"
    head = "---\ntitle: Sample\nauthor: Nobody\n---\n\n# Results\n\n"
    (forger.paper / "paper.md").write_text(
        f"{head}{quote}, root `{{{{ root_hash() }}}}`\n", "utf-8"
    )
    (forger.paper / "references.bib").write_text("", "utf-8")
    (forger.paper / "templates/answers.md").write_text(f"1. It is {quote}.\n", "utf-8")
    (forger.paper / "templates/studies.md").write_text("{{ sample.runs | length }} runs\n", "utf-8")
    forger.git("init", "--quiet")
    forger.commit()
    status, said = tree.run_all(f"params/{STUDY}.yaml")
    assert status == 0, said
    forger.commit()
    return forger


@pytest.fixture(scope="session")
def verifier(recorded: Forger) -> Iterator[Verifier]:
    verifier = Verifier(recorded.tree.root)
    yield verifier
    verifier.process.communicate()


@pytest.fixture(scope="session")
def noted(recorded: Forger, verifier: Verifier) -> None:
    """Let `verify` note that nothing is forged, and rely on it: no note may hide a forgery."""
    for words, known in ((["--fresh"], 0), ([], 2)):  # the study, and the texts of its paper
        status, said = verifier.verify(*words)
        assert status == 0, said
        assert (f"{STUDY}: " in said, said.count("verified before")) == (True, known), said


@pytest.fixture
def forger(recorded: Forger) -> Iterator[Forger]:
    head = recorded.git("rev-parse", "HEAD")
    yield recorded
    recorded.git("reset", "--quiet", "--hard", head)
    recorded.git("clean", "--quiet", "--force", "-d")


def scaled(*path: str, by: float = 1.001) -> Edit:
    """Change a number a little."""

    def change(content: Any) -> None:
        *outer, last = path
        for key in outer:
            content = content[int(key) if key.isdigit() else key]
        key = int(last) if last.isdigit() else last
        content[key] = content[key] * by

    return change


def put(value: Any, *path: str) -> Edit:
    """Put something else in a place."""

    def change(content: Any) -> None:
        *outer, last = path
        for key in outer:
            content = content[int(key) if key.isdigit() else key]
        content[int(last) if last.isdigit() else last] = value

    return change


def with_two_arms(verdict: dict[str, Any]) -> None:
    """Name the arm of every contrast twice: who reads the table by names sees the second."""
    table = verdict["contrasts"]
    table["columns"].append("arm")
    for row in table["data"]:
        row.append("scale")


def first_code(source: str) -> Callable[[Any], None]:
    """Add a line to the first code cell of a notebook."""

    def change(notebook: Any) -> None:
        cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
        cell.source += source

    return change


def add_text(notebook: Any) -> None:
    notebook.cells.append(nbformat.v4.new_markdown_cell("**The layer helps in every seed.**"))


def uncommitted(notebook: Any) -> None:
    notebook.metadata.study.clean = False


def printed(kind: str, old: str, new: str) -> Callable[[Any], None]:
    """Replace what the first output that holds it says."""

    def change(notebook: Any) -> None:
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                holder, key = (output, "text") if kind == "text" else (output.get("data", {}), kind)
                if old in str(holder.get(key, "")):
                    holder[key] = holder[key].replace(old, new)
                    return
        raise AssertionError(f"nothing says {old}")

    return change


def shown_by_02(kind: str, old: str, new: str) -> Callable[[Forger], None]:
    return lambda f: f.in_notebook(f.notebook(), printed(kind, old, new))


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def right(table: pd.DataFrame) -> None:
    table["correct"] = True


def times(column: str, by: float = 1.1) -> Callable[[pd.DataFrame], None]:
    def change(table: pd.DataFrame) -> None:
        table[column] *= by

    return change


def call_diverged(f: Forger) -> None:
    """Take a run that ended well out of what is compared, as one that diverged."""
    with f.unpacked() as folder:
        run = folder / "none/seed-0"
        raw, files = read_raw(run), {}
        for name in ("windows", "bins", "positions", "items"):
            path = write_raw(run, name, raw[name].iloc[:0])
            files[path.name] = sha256(path)
    ended = {"status": "diverged", "diverged_at": 20, "measures": {}, "tables": {}}
    f.in_run(lambda run: run.update(ended, files=run["files"] | files))


def more_tokens(f: Forger) -> None:
    f.in_raw("trace", times("tokens", by=3))
    f.in_run(scaled("tokens", by=3))
    f.in_run(scaled("throughput", "training_tokens_per_second", by=3))


def drop_run(f: Forger) -> None:
    shutil.rmtree(f.notebook("layernorm", 1).parent)
    with f.unpacked() as folder:
        shutil.rmtree(folder / "layernorm/seed-1")
    f.summarise()


def use_seeds(f: Forger, *seeds: int) -> None:
    """Ask for other seeds, wherever they stand."""
    f.in_json(f.results, put([*seeds], "study", "seeds"))
    f.summarise()
    for path in (f.record / "parameters.yaml", f.tree.root / f"params/{STUDY}.yaml"):
        f.in_yaml(path, put([*seeds], "seeds"))


def drop_seed(f: Forger) -> None:
    for arm in ("none", "layernorm"):
        shutil.rmtree(f.notebook(arm, 1).parent)
    with f.unpacked() as folder:
        for arm in ("none", "layernorm"):
            shutil.rmtree(folder / arm / "seed-1")
    use_seeds(f, 0)


def add_seed(f: Forger, provenance: bool) -> None:
    """Copy the runs of seed 1 as those of a seed 2."""

    def relabel(run: dict[str, Any]) -> None:
        run["seed"] = 2
        if provenance:
            run["provenance"]["trained"]["seed"] = 2

    for arm in ("none", "layernorm"):
        shutil.copytree(f.notebook(arm, 1).parent, f.notebook(arm, 2).parent)
        with f.unpacked() as folder:
            shutil.copytree(folder / arm / "seed-1", folder / arm / "seed-2")
            f.in_json(folder / arm / "seed-2/result.json", relabel, indent=1)
        path = f.notebook(arm, 2)
        told = re.sub(r"(seed(?: = | |-))1\b", r"\g<1>2", path.read_text("utf-8"))
        path.write_text(told, "utf-8")
        f.in_notebook(path, lambda nb: nb.metadata.papermill.parameters.update(seed=2))
    use_seeds(f, 0, 1, 2)
    f.attest()


def twice_in_result(f: Forger) -> None:
    with f.unpacked() as folder:
        path = folder / "none/seed-0/result.json"
        path.write_text(path.read_text("utf-8").replace("{", '{"note": "It helps.",', 1), "utf-8")


def copy_results(f: Forger, name: str) -> None:
    """Copy the results to a place beside them."""
    for path in (f.results, f.verdict):
        copy = f.results.parent / name.format(path.name.removeprefix(STUDY))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def drop_study(f: Forger) -> None:
    for folder in (f.record, f.figures):
        shutil.rmtree(folder)
    f.results.unlink()
    f.verdict.unlink()
    f.in_json(f.record.with_name("index.json"), lambda index: index.pop(STUDY), indent=1)
    for name in ("paper.md", "templates/answers.md"):
        text = (f.paper / name).read_text("utf-8")
        (f.paper / name).write_text(re.sub(r"\{\{ sample.*?\}\}", "36.0", text), "utf-8")


def exchange_results(f: Forger, one: tuple[str, int], other: tuple[str, int]) -> None:
    """Give two runs each other's numbers, wherever they stand."""
    found = f.runs()
    for mine, yours in ((one, other), (other, one)):
        numbers = {name: found[yours][name] for name in ("measures", "tables")}
        f.in_run(lambda run, numbers=numbers: run.update(numbers), *mine)


def hark(f: Forger) -> None:
    """Write the plan anew from the results, commit it, and stamp it on everything."""
    plan = f.tree.root / "params/plans/plan.yaml"
    old = f.runs()["none", 0]["provenance"]["trained"]["plan"]
    f.in_yaml(plan, put(0.2, "alpha"))
    shutil.copyfile(plan, f.record / "plan.yaml")
    f.commit()
    code = "from lib.study.study import load_study as s\n"
    code += "from lib.study.preregistration import load_plan as p"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(p(s('{STUDY}')).hash)"],
        cwd=f.tree.root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    f.everywhere(old, done.stdout.strip())
    head = f.git("rev-parse", "HEAD")
    for name in ("01_data", "03_analysis", "04_figures"):
        f.in_notebook(f.record / f"{name}.ipynb", lambda nb: nb.metadata.study.update(commit=head))


def in_account(name: str, value: Any) -> Callable[[Forger], None]:
    def change(run: dict[str, Any]) -> None:
        for account in run["provenance"].values():
            if name in account:
                account[name] = value
            elif name in account["machine"]:
                account["machine"][name] = value

    return lambda f: f.in_every_run(change)


def rewrite(path: str, old: str, new: str) -> Callable[[Forger], None]:
    """Replace text in a file of the repository."""

    def change(f: Forger) -> None:
        file = f.tree.root / path
        text = file.read_text("utf-8")
        changed = re.sub(old, new, text, count=1)
        assert changed != text
        file.write_text(changed, "utf-8")

    return change


PAPER = "papers/embedding-norm"


def in_suite(f: Forger, old: str, new: str) -> None:
    with f.unpacked() as folder:
        (path,) = folder.glob("suite/*/spelling.test.jsonl")
        path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")


def _record(f: Forger) -> Record:
    """The study's record in the forger's tree."""
    found = Record(STUDY)
    found.folder = f.record
    return found


def other_suite(f: Forger) -> None:
    """Other questions, under their own hash wherever a suite's stands."""
    in_suite(f, "e", "i")
    (new,) = [str(suite["hash"]) for suite in recorded_suites(_record(f))]
    with f.unpacked() as folder:
        (path,) = folder.glob("suite/*/suite.json")
        suite = json.loads(path.read_text("utf-8"))
        old, suite["hash"] = suite["hash"], new
        suite["files"] = {name: sha256(path.parent / name) for name in suite["files"]}
        write_json(path, suite)
    f.everywhere(old, new)


def replace_windows(f: Forger) -> None:
    with f.unpacked() as folder:
        write_raw(folder / "none/seed-0", "windows", pd.DataFrame({"n": [1]}))


def add_raw_file(f: Forger, name: str, content: str = "1") -> None:
    with zipfile.ZipFile(f.record / RAW_ZIP, "a") as packed, catch_warnings():
        simplefilter("ignore")  # of a second file of one name
        packed.writestr(name, content)


FORGERIES: dict[str, tuple[Callable[[Forger], object], str]] = {
    # Numbers of runs
    "a measure in a result": (
        lambda f: f.in_result(scaled("measures", "perplexity")),
        "the result of run none seed 0 is not its notebook's",
    ),
    **{
        f"{name} in notebook and results": (
            lambda f, name=name: f.in_run(scaled("measures", name)),
            f"none seed 0: {name} is .* by its raw files",
        )
        for name in ("perplexity", "accuracy", "ece", "brier", "ece_test_tempered",
                     "embedding_norm", "grad_norm_last_tenth", "macro_accuracy_zero_shot")
    },
    "a measure without sums, in notebook and results": (
        lambda f: f.in_run(scaled("measures", "ece_null", by=2)),
        "code cell .* of 03_analysis.ipynb shows what executing it does not",
    ),
    "speed": (
        lambda f: f.in_run(scaled("throughput", "training_tokens_per_second")),
        "training speed is",
    ),
    "seconds": (lambda f: f.in_run(scaled("seconds", "training")), "training is"),
    "losses by length of context": (
        lambda f: f.in_raw("positions", times("position_loss")), "the loss at length 16"
    ),
    "a table of tasks": (
        lambda f: f.in_run(scaled("tables", "tasks", "0", "accuracy")), "accuracy in .* is not"
    ),
    "a table without a raw file": (
        lambda f: f.in_run(scaled("tables", "temperatures", "8", "nll", by=1.1)),
        "figure calibration was drawn from other data",
    ),
    "the summary": (
        lambda f: f.in_json(f.results, scaled("summary", "none", "perplexity", "mean")),
        "summary in sample.json is not what the analysis says",
    ),
    "a run called diverged": (
        lambda f: f.in_run(lambda run: run.update(status="diverged", diverged_at=20)),
        "windows is True, and False|windows is",
    ),
    # Raw files
    "windows": (
        replace_windows, "windows.parquet is not the file"
    ),
    "a finished run called diverged, and emptied": (
        call_diverged, r"it is diverged, and its last losses and gradient norm are \["
    ),
    "windows left out between": (
        lambda f: f.in_raw("windows", lambda t: t.drop(t.index[1], inplace=True)),
        "windows.parquet leaves out a part of the text",
    ),
    "windows left out at the end, and the measures with them": (
        lambda f: f.in_raw("windows", lambda t: t.drop(t.index[-2:], inplace=True)),
        "nll at temperature 1 is",
    ),
    "tokens, wherever they stand": (
        more_tokens, "tokens in trace.parquet are not 384 a step"
    ),
    "a measure that was never made": (
        lambda f: f.in_run(put(0.9, "measures", "accuracy_dev")),
        "accuracy_dev is 0.9, which its raw files do not support",
    ),
    "the variant of a run": (
        lambda f: f.in_run(put("layernorm", "variant")), "its variant is .*, and of its arm"
    ),
    # What a notebook shows
    "a number in the table of a result": (
        shown_by_02("text/html", "<td>completed", "<td>excellent"),
        "the table of its result in its notebook says status: excellent",
    ),
    "the sentence about a result": (
        shown_by_02("text", "after 20 steps", "after 200 steps"),
        "the sentence about its result in its notebook is not that of the result",
    ),
    "a head of the table of seconds": (
        shown_by_02("text/html", "<th>seconds</th>", "<th>seconds, and it helps</th>"),
        "the table of its seconds in its notebook is not that of the result",
    ),
    "a printed standing": (
        shown_by_02("text", "under plan ", "and it helps, under plan "),
        "its notebook says another standing than commit",
    ),
    # What a record holds
    "an index that says less": (
        lambda f: f.in_json(f.record.parent / "index.json", lambda c: c[STUDY].pop("manifest")),
        "the index says otherwise of its manifest",
    ),
    "a text in the record": (
        lambda f: (f.record / "SUMMARY.md").write_text("It helps.\n"),
        "SUMMARY.md is no file of this record",
    ),
    "another verdict in the folder of an arm": (
        lambda f: shutil.copy(f.record / "03_analysis.ipynb", f.record / "none"),
        "none/03_analysis.ipynb names another place than its own",
    ),
    "a raw file twice": (
        lambda f: add_raw_file(f, "none/seed-0/trace.parquet"), "trace.parquet twice"
    ),
    "no raw files": (
        lambda f: (f.record / RAW_ZIP).unlink(), "run none seed 0: its result.json is missing"
    ),
    "damaged raw files": (
        lambda f: (f.record / RAW_ZIP).write_bytes(b"PK"), "a file of it cannot be read"
    ),
    "windows, with their hash": (
        lambda f: f.in_raw("windows", times("nll"), follow=False), "perplexity is .* by its raw"
    ),
    "windows, with hash and measures": (
        lambda f: f.in_raw("windows", times("nll")), "nll at temperature 1 is"
    ),
    "items, with hash and measures": (lambda f: f.in_raw("items", right), "accuracy in"),
    "choices": (
        lambda f: f.in_raw("items", lambda t: t.update({"choice": 1 - t["choice"]})),
        "items.parquet counts as right in .* what the suite does not",
    ),
    "the numbers of questions": (
        lambda f: f.in_raw("items", times("item", 2)), "the questions of .* are not those"
    ),
    "gradients, with hash and measures": (
        lambda f: f.in_raw("trace", times("grad_norm")),
        "the (sentence about|table of) its result",
    ),
    "losses of the curve, with their hash": (
        lambda f: f.in_raw("curve", times("dev_loss")), "prints something else of its training"
    ),
    "norms of the curve, with their hash": (
        lambda f: f.in_raw("curve", times("residual_norm_1", 2)), "code cell .* of 03_analysis"
    ),
    "steps left out of the trace": (
        lambda f: f.in_raw("trace", lambda t: t.drop(index=5, inplace=True)), "steps is 20, and 19"
    ),
    "no seconds": (
        lambda f: f.in_raw("trace", times("seconds", 0)), "cannot be read as .*ZeroDivisionError"
    ),
    "a question of the suite": (lambda f: in_suite(f, "e", "i"), "the record holds no suite"),
    "another suite": (other_suite, "run none seed 0 was asked other questions than its text gives"),
    # The analysis
    **{
        f"{name} of the verdict": (
            lambda f, edit=edit: f.in_verdict(edit),
            f"{name} in sample.verdict.json is not what the analysis says",
        )
        for name, edit in {
            "contrasts": scaled("contrasts", "0", "mean_delta"),
            "decisions": put([{"arm": "layernorm", "rule": "R3"}], "decisions"),
            "standing": put("CONFIRMATORY", "standing"),
            "deviations": put([], "deviations"),
            "answers": put({"answer": "supported", "reason": ""}, "answers", "H1b"),
            "evidence": put({}, "evidence", "0", "primary"),
            "stability": put(3.0, "stability", "0", "severity"),
            "references": scaled("references", "0", "nats"),
            "plan_changes": put([{"field": "alpha"}], "plan_changes"),
            "plan_precedes": put("yes: plan fixed at 000000000000", "plan_precedes"),
        }.items()
    },
    "a column of the verdict twice": (
        lambda f: f.in_json(f.verdict, with_two_arms), "a table whose rows do not fit its columns"
    ),
    "a number of the verdict under no column": (
        lambda f: f.in_json(f.verdict, lambda c: c["contrasts"]["data"][0].append(1)),
        "a table whose rows do not fit its columns",
    ),
    "a printed sentence": (
        lambda f: f.in_notebook(
            f.record / "03_analysis.ipynb", printed("text", "layernorm: ", "layernorm, as hoped: ")
        ),
        "code cell .* of 03_analysis.ipynb shows",
    ),
    "the summary, and a printed sentence": (
        lambda f: [FORGERIES[name][0](f) for name in ("the summary", "a printed sentence")],
        "summary in sample.json is not what the analysis says",
    ),
    "a key that stands there twice": (
        lambda f: f.notebook().write_text(
            f.notebook().read_text("utf-8").replace("{", '{"cells":"It helps.",', 1), "utf-8"
        ),
        "none/seed-0/02_train.ipynb is not written as the archive writes it",
    ),
    # Code and notebooks
    **{
        f"{what} of {name}": (
            lambda f, edit=edit, name=name: f.in_notebook(
                next(f.record.rglob(f"{name}.ipynb")), edit
            ),
            f"{name}.ipynb holds other code or text than that of commit",
        )
        for what, edit in {"code": first_code("\nwishful = 1"), "a text cell": add_text}.items()
        for name in ("01_data", "02_train", "03_analysis", "04_figures")
    },
    "notebooks of two seeds swapped": (
        lambda f: swap(f.notebook(seed=0), f.notebook(seed=1)), "other parameters than those"
    ),
    "numbers of two seeds swapped": (
        lambda f: exchange_results(f, ("none", 0), ("none", 1)), "by its raw files"
    ),
    # Figures
    "data of a figure": (
        lambda f: f.in_json(f.record / "04_figures.json", put("0" * 64, "trend")),
        "figure trend was drawn from other data",
    ),
    # Provenance, parameters and plan
    "the plan stamped on a notebook": (
        lambda f: f.in_notebook(
            f.notebook(), lambda nb: nb.metadata.study.update(preregistration="0" * 64)
        ),
        "stamped with another plan",
    ),
    "the plan stamped on everything": (
        lambda f: f.everywhere(
            f.runs()["none", 0]["provenance"]["trained"]["plan"],
            "0" * 64,
        ),
        "its plan is another one today",
    ),
    "the plan, edited after the runs": (
        rewrite("params/plans/plan.yaml", "alpha: 0.05", "alpha: 0.2"),
        "its plan is another one today",
    ),
    "the plan in the record": (
        rewrite(f"{PAPER}/record/{STUDY}/plan.yaml", "alpha: 0.05", "alpha: 0.2"),
        "plan.yaml is not the plan of commit",
    ),
    "the plan in the record, of an analysis said not to be committed": (
        lambda f: [
            f.in_yaml(f.record / "plan.yaml", put(0.2, "alpha")),
            f.in_notebook(f.record / "03_analysis.ipynb", uncommitted),
        ],
        "plan.yaml is not the plan that its runs were made under",
    ),
    "deviations rewritten in plan and verdict": (
        lambda f: [
            f.in_yaml(f.tree.root / "params/plans/plan.yaml", put([], "deviations")),
            f.in_yaml(f.record / "plan.yaml", put([], "deviations")),
            f.in_verdict(put([], "deviations")),
        ],
        "plan.yaml is not the plan of commit",
    ),
    "deviations removed from the plan after the record, committed": (
        lambda f: [
            f.in_yaml(f.tree.root / "params/plans/plan.yaml", put([], "deviations")),
            f.commit(),
        ],
        "were removed from the plan since, or rewritten",
    ),
    "a plan written from the results, committed and stamped on everything": (
        hark, "01_data.ipynb is dated before commit .*, which it names"
    ),
    "parameters in the record": (
        rewrite(f"{PAPER}/record/{STUDY}/parameters.yaml", "iterations: 20", "iterations: 2000"),
        "params/sample.yaml is another study today than was recorded",
    ),
    "parameters in record and params": (
        lambda f: [
            f.in_yaml(p, put(2000, "training", "iterations"))
            for p in (f.record / "parameters.yaml", f.tree.root / f"params/{STUDY}.yaml")
        ],
        "parameters.yaml is not params/sample.yaml of commit",
    ),
    "parameters of a run": (
        lambda f: f.in_run(put(0.5, "config", "training", "learning_rate")),
        "other parameters than its result says",
    ),
    "parameters of a run and of its origin": (
        lambda f: f.in_run(lambda run: [
            part["training"].update(learning_rate=0.5)
            for part in (run["config"], run["provenance"]["trained"]["parameters"])
        ] and None),
        "its notebook prints other parameters than its result says",
    ),
    "the training digest": (in_account("training_digest", "0" * 64), "names a training_digest"),
    "the machine": (in_account("device_name", "Abacus"), "code cell .* of 03_analysis"),
    "final weights of another seed": (
        lambda f: f.in_run(lambda run: run.update(final_weights=f.runs()["none", 1][
            "final_weights"])),
        "run none seed 1 has the final weights of run none seed 0",
    ),
    "an analysis before its runs": (
        lambda f: f.in_notebook(f.record / "03_analysis.ipynb", lambda nb: [
            nb.metadata.papermill.update(start_time="2020-01-01T00:00:00+00:00", duration=(
                datetime.fromisoformat(nb.metadata.papermill.end_time)
                - datetime(2020, 1, 1, tzinfo=UTC)).total_seconds()),
            nb.metadata.study.update(seconds=nb.metadata.papermill.duration),
        ]),
        "03_analysis.ipynb is dated before what it was made from",
    ),
    "the time of training": (
        in_account("started", "2020-01-01 00:00:00 UTC"), "it was trained at another time"
    ),
    "weights said not to be measured again": (
        lambda f: f.in_run(put("2030-01-01 00:00:00 UTC", "provenance", "executed", "finished")),
        "at another time",
    ),
    "initial weights of a run": (
        lambda f: f.in_run(put("0" * 64, "initial_weights")),
        "none seed 0: initial_weights are not those of its seed",
    ),
    "batches of a run": (
        lambda f: f.in_run(put("0" * 64, "batches")), "none seed 0: batches are not those of its"
    ),
    "the corpus of a run": (
        lambda f: f.in_run(lambda run: [
            part.update(corpus_sha256="0" * 64) for part in (run, run["provenance"]["trained"])
        ] and None),
        "none seed 0: corpus_sha256 are not those of its seed",
    ),
    # What is there
    "a run left out": (drop_run, "run layernorm seed 1: its result.json is missing"),
    "a seed left out, parameters too": (drop_seed, "parameters.yaml is not params/sample.yaml"),
    "a seed left out, parameters too, of an analysis said not to be committed": (
        lambda f: [drop_seed(f), f.in_notebook(f.record / "03_analysis.ipynb", uncommitted)],
        "run layernorm seed 1 of commit .* is left out",
    ),
    "a notebook of a run added": (
        lambda f: shutil.copytree(f.notebook("none", 1).parent, f.record / "none/seed-2"),
        "none/seed-2/02_train.ipynb was executed with other parameters",
    ),
    "a seed added": (lambda f: add_seed(f, provenance=False), "trained with seed 1"),
    "a seed added, with an origin": (
        lambda f: add_seed(f, provenance=True), "none seed 2 has the .* of run none seed 1"
    ),
    "a key that stands twice in a result": (
        twice_in_result, "the result of run none seed 0 is not written as the archive writes it"
    ),
    "a study taken from the index": (
        lambda f: f.in_json(f.record.with_name("index.json"), lambda index: index.pop(STUDY)),
        "the index does not name it",
    ),
}  # fmt: skip
UNSEALED = {
    "an index that says less",
    "a study taken from the index",
}


TEXTS: dict[str, tuple[Callable[[Forger], object], str]] = {
    "a number in paper.tex": (
        rewrite(f"{PAPER}/paper.tex", r"\d\d\.\d\d", "11.11"),
        "paper.tex is",
    ),
    "the root in paper.tex": (
        rewrite(f"{PAPER}/paper.tex", r"[0-9a-f]{64}", "0" * 64),
        "paper.tex",
    ),
    "a page of paper.pdf": (
        lambda f: (f.paper / "paper.pdf").write_bytes(b"%PDF-1.7"),
        "paper.pdf is not what its sources",
    ),
    "results beside those of the study": (
        lambda f: copy_results(f, "sample.better{}"),
        "results/sample.better.verdict.json is of no study that the index",
    ),
    "results in another paper's folder": (
        lambda f: copy_results(f, "../../other/results/sample{}"),
        "papers/other/results/sample.json is of no study that the index",
    ),
    "figures of no study": (
        lambda f: shutil.copytree(f.figures, f.figures.with_name("better")),
        "figures/better is of no study that the index",
    ),
    "an answer whose comments are removed": (
        lambda f: [
            rewrite("README.md", "<!-- answers: .* -->\n", "")(f),
            rewrite("README.md", "<!-- end of answers -->\n", "")(f),
        ],
        "README.md lacks a computed part",
    ),
    "an answer in the README": (rewrite("README.md", r"1\. It is", "1. It was"), "README.md does"),
    "the root in the README": (
        rewrite(
            "papers/README.md", r"(?m)(?<=^Root of records, results and plans: `)\w+", "0" * 64
        ),
        "papers/README.md does",
    ),
    "a study left out": (drop_study, "study 'sample', recorded at commit .*, has vanished"),
    "a run left out": (drop_run, "run layernorm seed 1 of 'sample', .* has vanished"),
}


SAMPLES = {
    "verify.check_format": "a key that stands there twice",
    "verify.check_index": "an index that says less",
    "verify.check_notebooks": "notebooks of two seeds swapped",
    "verify.check_names": "a text in the record",
    "verify.check_results": "a measure in a result",
    "archive.check_raw_zip": "a raw file twice",
    "provenance.check_code": "a text cell of 03_analysis",
    "provenance.check_origins": "the variant of a run",
    "provenance._wrong_origin": "the plan stamped on a notebook",
    "provenance.check_plan": "deviations rewritten in plan and verdict",
    "provenance.check_times": "an analysis before its runs",
    "provenance.check_copies": "final weights of another seed",
    "provenance.check_commits": "parameters in record and params",
    "provenance._unlike_commit": "a printed standing",
    "runs.check_runs": "windows, with their hash",
    "runs.check_raw_files": "windows",
    "runs._wrong_numbers": "a measure that was never made",
    "runs._wrong_tables": "a table of tasks",
    "runs._wrong_items": "choices",
    "runs._wrong_course": "tokens, wherever they stand",
    "runs._wrong_text": "windows left out between",
    "runs._wrong_print": "the sentence about a result",
    "runs._wrong_table": "a number in the table of a result",
    "runs._wrong_times": "a head of the table of seconds",
    "build.check_beginnings": "batches of a run",
    "build.check_suites": "another suite",
    "build.check_analysis": "the summary, and a printed sentence",
    "build._other_outputs": "the summary, and a printed sentence",
    "build.check_figures": "data of a figure",
    "verify.vanished": "a study left out",
    "verify.strays": "figures of no study",
    "paper.check_texts": "an answer in the README",
}
"""The forgery that the usual tests try for each check."""
ELSEWHERE = {
    "record.check_files": "every forgery is sealed, which this check is not for",
    "verify.check_first_record": "needs a study of the first record: tests/record/test_verify.py",
    "build.check_pictures": "drawn again below",
    "provenance.check_end": "needs a study with looks: tests/record/test_provenance.py",
    "provenance._other_code": "needs arms that are commits: tests/record/test_provenance.py",
    "provenance.check_versions": "needs a plan of two: tests/record/test_provenance.py",
    "runs.check_windows": "needs runs of two texts: tests/record/test_runs.py",
}
"""Checks for which no forgery of this study stands, and where they are tried."""
UNSEALED |= TEXTS.keys() - {"a run left out"}


def test_every_check_has_a_forgery_that_it_names() -> None:
    """A check yields faults; one that only passes on those of others needs none of its own."""
    checks = set()
    for module in (archive, build, paper, provenance, record, runs, verify):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            said = isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns)
            own = [each for each in ast.walk(node) if isinstance(each, ast.Yield | ast.YieldFrom)]
            if isinstance(node, ast.FunctionDef) and said == "Iterator[str]" and own:
                checks.add(f"{module.__name__.rpartition('.')[2]}.{node.name}")
    checks.remove("provenance.before")  # within check_times
    assert checks == SAMPLES.keys() | ELSEWHERE.keys()


def kinds(forgeries: dict[str, Any]) -> list[Any]:
    """Mark as long what is no sample of its check."""
    sampled = set(SAMPLES.values())
    marks = {name: [] if name in sampled else [pytest.mark.long] for name in forgeries}
    return [pytest.param(name, marks=marks[name]) for name in forgeries]


def test_nothing_is_named_where_nothing_is_forged(forger: Forger, verifier: Verifier) -> None:
    """What is made again of a sound record, the usual tests do with that of `example`."""
    status, said = verifier.texts()
    assert status == 0, said
    assert "files verified" in said


def forged(name: str, forger: Forger, verifier: Verifier) -> None:
    (FORGERIES | TEXTS)[name][0](forger)
    if name not in UNSEALED:
        verifier.seal()


def require_named(name: str, words: str, said: tuple[int, str]) -> None:
    assert said[0] == 1, said[1]
    assert re.search(words, said[1]), said[1]
    for check in [check for check, sample in SAMPLES.items() if sample == name]:
        assert f"[{check}]" in said[1]


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("name", kinds(FORGERIES))
def test_a_forgery_is_named(name: str, forger: Forger, verifier: Verifier) -> None:
    forged(name, forger, verifier)
    require_named(name, FORGERIES[name][1], verifier.verify(STUDY))


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize("name", kinds(TEXTS))
def test_a_forgery_of_texts_is_named(name: str, forger: Forger, verifier: Verifier) -> None:
    forged(name, forger, verifier)
    require_named(name, TEXTS[name][1], verifier.texts())


@pytest.mark.long
def test_runs_forged_alike_everywhere_are_found_by_training_again(
    forger: Forger, verifier: Verifier
) -> None:
    def elsewhere(run: dict[str, Any]) -> None:
        for account in run["provenance"].values():
            account["machine"]["device_name"] = "Abacus"

    def better(run: dict[str, Any]) -> None:
        run["measures"]["accuracy"] += 0.2

    hashed = put("0" * 64, "final_weights")
    edits = {
        ("none", 0): [hashed],
        ("none", 1): [hashed, elsewhere],
        ("layernorm", 0): [better, elsewhere],
        ("layernorm", 1): [better, elsewhere, hashed],
    }
    for run, forgeries in edits.items():
        for forge in forgeries:
            forger.in_run(forge, *run)
    verifier.seal()
    names = [f"{STUDY}/{arm}/{seed}" for arm, seed in edits]
    status, said = forger.tree.run_all("verify", STUDY, "--retrain", *names, seconds=1200)
    assert status == 1, said
    assert f"error: {names[0]}, trained again: final_weights differ" in said
    hash_alone = "final_weights, of which only a hash is at hand"
    elsewhere_said = "cannot be judged (another CPU or versions: device_name)"
    assert f"{names[1]}: trained again, {elsewhere_said}: {hash_alone}" in said
    assert f"error: {names[2]}, trained again: accuracy is " in said
    assert re.search(rf"{names[3]}[,:] trained again.*: accuracy is .*with other rounding", said)
    assert "equal to the bit" not in said


@pytest.mark.long
def test_a_sound_run_is_equal_to_the_bit(forger: Forger) -> None:
    status, said = forger.tree.run_all("verify", STUDY, "--retrain", f"{STUDY}/none/1")
    assert status == 0, said
    assert said.splitlines()[-1] == "Trained again: 1 equal to the bit"


@pytest.mark.long
def test_a_picture_that_does_not_show_its_data_is_found_by_drawing_it(
    forger: Forger, verifier: Verifier
) -> None:
    status, said = verifier.verify(STUDY, "--redraw")
    assert status == 0, said
    shutil.copyfile(forger.figures / "inside.png", forger.figures / "trend.png")
    forger.in_notebook(forger.record / "01_data.ipynb", printed("text", "SHA-256", "SHA-255"))
    verifier.seal()
    status, said = verifier.verify(STUDY, "--redraw")
    assert status == 1, said
    assert "of 01_data.ipynb shows what executing it does not" in said
    assert "figure trend.png is not what 04_figures draws" in said
