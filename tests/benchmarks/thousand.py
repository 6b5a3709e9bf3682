"""A study of a thousand runs, or more, fabricated: two runs are trained, and copied under other
rates and seeds. Enough to plan, to look for what is stale, and to analyse."""

import json
import shutil
import subprocess
import sys

import yaml

from lib.study.study import Study
from tests.conftest import Tree

RATES, SEEDS = 50, 10


def write_studies(tree: Tree, seeds: int = SEEDS) -> Study:
    """Write the study `thousand`, of so many seeds in 100 arms, and `two`, of which it is made."""
    rates = [round(1e-4 * 1.05**i, 8) for i in range(RATES)]
    content = {"plan": "second.yaml", "evaluation": {"interval": 4, "dev_windows": 4}}
    content["evaluation"] |= {"items_per_task": 20}
    norms = ["none", "layernorm"]
    for name, levels, number in (("two", rates[:1], 1), ("thousand", rates, seeds)):
        factors = {"model.embedding_norm": norms, "training.learning_rate": levels}
        tree.write_study(name, **content, factors=factors, seeds=list(range(number)))
    text = (tree.root / "params" / "thousand.yaml").read_text("utf-8")
    return Study.model_validate(yaml.safe_load(text))


def train_two(tree: Tree) -> None:
    """Train the two runs of `two`."""
    status, text = tree.run_all("params/two.yaml", "--until", "train", seconds=900)
    assert status == 0, text


def fabricate(tree: Tree, study: Study) -> None:
    """Lay out a result of every run of `thousand`, as if it had been trained."""
    for arm in study.arms():
        norm = str(arm.levels["model.embedding_norm"])
        (source,) = (tree.root / "runs" / "two").glob(f"{norm},*/seed-0")
        result = json.loads((source / "result.json").read_text("utf-8"))
        config = arm.config.model_dump(exclude={"machine"})
        for seed in study.seeds:
            folder = tree.run_folder(study.name, arm.id, seed)
            ignored = shutil.ignore_patterns("checkpoints", "*.lock", "result.json")
            shutil.copytree(source, folder, ignore=ignored)
            content = result | {"study": study.name, "study_hash": study.hash, "seed": seed}
            for name in ("baseline", "levels", "variant", "setting"):
                content[name] = getattr(arm, name)
            content |= {"arm": arm.id, "config": config}
            shift = 0.001 * seed + 0.01 * (hash_of(arm.id) % 100)
            content["measures"] = {
                name: value if value is None else value + shift
                for name, value in result["measures"].items()
            }
            trained = result["provenance"]["trained"] | {"arm": arm.id, "seed": seed}
            trained |= {"study": study.name, "parameters": config}
            content["provenance"] = result["provenance"] | {"trained": trained}
            (folder / "result.json").write_text(json.dumps(content), "utf-8")


def hash_of(name: str) -> int:
    """A number that follows from a name, in every process the same."""
    return sum(name.encode())


ANALYSIS = """
import resource, sys, time
start = time.perf_counter()
from lib.analysis.verdict import analyse
from lib.analysis.runs import collect, read_parquet, read_table, study_results, tidy
from lib.study.study import load_study
from lib.study.preregistration import claim_status, load_plan
design = load_study(sys.argv[1])
plan = load_plan(design)
results = collect(design)
runs, tasks = tidy(results), read_table(results, "tasks")
trace, items, stock = (read_parquet(design, n) for n in ("trace", "items", "stock_items"))
claim = claim_status(design, plan, [run.model_dump() for run in results])
analysis = analyse(design, plan, claim, runs, trace, items, stock)
analysis.as_json(), study_results(design, results)
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def analysed(tree: Tree, *python: str) -> tuple[float, float]:
    """Do what 03_analysis does with `thousand`; return the seconds and the peak memory in GB."""
    done = subprocess.run(
        [sys.executable, *python, "-c", ANALYSIS, "thousand"],
        cwd=tree.root,
        env=tree.environment | {"PYTHONPATH": str(tree.root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seconds, memory = map(float, done.stdout.splitlines()[-1].split())
    return seconds, memory
