"""What each page of the lab record shows of the catalogue, as plain values."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from lib.publish.archive import record_folder, sha256
from lib.publish.catalogue import NotebookEntry, RunEntry, StudyEntry, neighbours
from lib.study.measures import MEASURES, measures_in
from lib.study.paths import shown

HEADLINE = measures_in("headline")
ABOUT = {
    "01_data": "What the models read, and the task suite.",
    "03_analysis": "All runs in one table, statistics, verdict.",
    "04_figures": "The study in pictures.",
}
STUDY_HASHES = ("study_hash", "corpus_sha256", "suite_hash")
RUN_HASHES = (*STUDY_HASHES, "initial_weights", "batches", "final_weights")


def run_page(run: RunEntry) -> str:
    """Where a run's page lies in the site."""
    return f"{run.study}/{run.arm}/seed-{run.seed}.html"


def index_content(studies: list[StudyEntry], paper: bool) -> dict[str, Any]:
    """What the index shows."""
    runs = [
        {
            "study": run.study,
            "arm": run.arm,
            "seed": run.seed,
            "href": quote(run_page(run)),
            "status": run.notebook.status,
            "reason": run.notebook.reason if run.notebook.status == "diverged" else "",
            "measures": [{"text": _text(run, m), "value": _value(run, m)} for m in HEADLINE],
            "seconds": _seconds(run.notebook),
            "weights": run.result["final_weights"] if run.result else "",
            "sha256": sha256(run.notebook.path),
        }
        for study in studies
        for run in study.runs
    ]
    overview = []
    for study in studies:
        ended = [run.notebook.status for run in study.runs]
        overview.append(
            _named(study)
            | {
                "href": quote(f"{study.name}/index.html"),
                "runs": len(ended),
                "diverged": ended.count("diverged"),
                "failed": ended.count("failed"),
            }
        )
    return {
        "title": "All studies and runs",
        "paper": paper,
        "studies": overview,
        "runs": runs,
        "statuses": sorted({run["status"] for run in runs}),
        "measures": [MEASURES[name].label for name in HEADLINE],
        "verdicts": [
            row | {"decisions": decisions(study), "deviations": study.verdict.get("deviations", [])}
            for study, row in zip(studies, overview, strict=True)
            if study.confirmatory and study.verdict
        ],
    }


def study_content(study: StudyEntry) -> dict[str, Any]:
    """What a study's page shows."""
    arms = list(dict.fromkeys(run.arm for run in study.runs))
    seeds = sorted({run.seed for run in study.runs})
    at = {(run.arm, run.seed): run for run in study.runs}
    grid = [{"arm": arm, "runs": [_cell(at.get((arm, seed))) for seed in seeds]} for arm in arms]
    summary = [
        {"arm": arm, "cells": [_mean(of[name], MEASURES[name].digits) for name in HEADLINE]}
        for arm, of in study.summary.items()
    ]
    notebooks = [
        {"name": name, "href": f"{name}.html", "about": ABOUT[name]}
        | {"status": entry.status, "reason": entry.reason}
        for name, entry in study.shared.items()
    ]
    parameters = record_folder(study.name) / "parameters.yaml"
    result = next((run.result for run in study.runs if run.result), None)
    return _named(study) | {
        "title": f"Study {study.name}",
        "notebooks": notebooks,
        "decisions": decisions(study),
        "measure": MEASURES[HEADLINE[0]].label.capitalize(),
        "seeds": seeds,
        "grid": grid,
        "measures": [MEASURES[name].label for name in HEADLINE],
        "summary": summary,
        "hashes": _hashes(result, STUDY_HASHES),
        "parameters": parameters.read_text("utf-8") if study.recorded else "",
    }


def shared_content(study: StudyEntry, name: str, notebook: NotebookEntry) -> dict[str, Any]:
    """What stands around a notebook that is executed once per study."""
    return _around(study, notebook, "index.html") | {
        "title": f"{name} · {study.name}",
        "heading": f"{study.name} · {name}",
        "here": name,
        "facts": [],
        "neighbours": [],
        "hashes": [("SHA-256", sha256(notebook.path))],
    }


def run_content(study: StudyEntry, run: RunEntry) -> dict[str, Any]:
    """What stands around a run's notebook."""

    def link(other: RunEntry | None, axis: str) -> dict[str, str] | None:
        if other is None:
            return None
        return {"href": "../../" + quote(run_page(other)), "level": str(other.coordinates[axis])}

    facts = [(MEASURES[name].label, _text(run, name)) for name in HEADLINE]
    facts = [(label, text) for label, text in facts if text != "n/a"]
    if run.result:
        facts.append(("steps", f"{run.result['steps']:,}"))
    if run.notebook.seconds is not None:
        facts.append(("duration", f"{_seconds(run.notebook)} s"))
    return _around(study, run.notebook, "../index.html") | {
        "title": f"{run.arm}, seed {run.seed} · {study.name}",
        "heading": f"{run.arm}, seed {run.seed}",
        "here": f"{run.arm}, seed {run.seed}",
        "facts": facts,
        "neighbours": [
            {
                "axis": axis.rpartition(".")[2],
                "here": str(run.coordinates[axis]),
                "previous": link(before, axis),
                "next": link(after, axis),
            }
            for axis, (before, after) in neighbours(run, study.runs).items()
        ],
        "hashes": [
            ("SHA-256", sha256(run.notebook.path)),
            *_hashes(run.result, RUN_HASHES),
        ],
    }


def decisions(study: StudyEntry) -> list[dict[str, Any]]:
    """A row per arm that a plan judges: the decision, where its rules reach one, and the
    differences behind it."""
    if not study.verdict:
        return []
    decided = {decision["arm"]: decision for decision in study.verdict["decisions"]}
    baselines = {run.arm: run.result["baseline"] for run in study.runs if run.result}
    contrasts = {
        (row["arm"], row["measure"]): row
        for row in study.verdict["contrasts"]
        if row["baseline"] == baselines.get(row["arm"])
    }
    rows = []
    for evidence in study.verdict["evidence"]:
        arm = evidence["arm"]
        measures = [m for m in (*evidence["accuracy"], "perplexity") if (arm, m) in contrasts]
        effects = [{"label": MEASURES[m].label} | _effect(contrasts[arm, m]) for m in measures]
        rows.append(
            {
                "arm": arm,
                "decision": decided.get(arm),
                "effects": effects,
                "hypotheses": study.verdict.get("hypotheses", {}).get(arm, {}),
            }
        )
    return rows


def _effect(row: dict[str, Any]) -> dict[str, str]:
    digits = MEASURES[row["measure"]].digits
    delta, low, high = (
        "n/a" if row[key] is None else f"{row[key]:+.{digits}f}"
        for key in ("mean_delta", "t_low", "t_high")
    )
    kind, p = ("Holm p", row["p_holm"]) if row["family"] else ("unadjusted p", row["t_p"])
    number = "n/a" if p is None else f"{p:.2g}"
    return {"change": delta, "interval": f"[{low}, {high}]", "p": f"{kind} {number}"}


def _named(study: StudyEntry) -> dict[str, Any]:
    return {
        "name": study.name,
        "status": study.status,
        "standing": study.verdict["standing"] if study.verdict else "",
        "description": study.description,
    }


def _around(study: StudyEntry, notebook: NotebookEntry, study_href: str) -> dict[str, Any]:
    """What stands around any notebook."""
    return {
        "study": study.name,
        "study_href": study_href,
        "standing": _named(study)["standing"],
        "status": notebook.status,
        "reason": notebook.reason,
        "source": shown(notebook.path),
    }


def _cell(run: RunEntry | None) -> dict[str, Any] | None:
    """A run in its study's grid; None where there is none."""
    if run is None:
        return None
    href = quote(f"{run.arm}/seed-{run.seed}.html")
    return {"href": href, "status": run.notebook.status, "text": _text(run, HEADLINE[0])}


def _value(run: RunEntry, measure: str) -> float | None:
    value: float | None = run.result["measures"].get(measure) if run.result else None
    return value


def _text(run: RunEntry, measure: str) -> str:
    value = _value(run, measure)
    return "n/a" if value is None else f"{value:,.{MEASURES[measure].digits}f}"


def _mean(sample: dict[str, Any], digits: int) -> str:
    """Write one measure of an arm's summary."""
    mean, sd = (
        "n/a" if sample[key] is None else f"{sample[key]:,.{digits}f}" for key in ("mean", "sd")
    )
    return f"{mean} ± {sd} ({sample['n']})" if sample["n"] else "n/a"


def _seconds(notebook: NotebookEntry) -> str:
    return "n/a" if notebook.seconds is None else f"{notebook.seconds:.0f}"


def _hashes(result: dict[str, Any] | None, names: Iterable[str]) -> list[tuple[str, str]]:
    """Name the hashes of a result, among them the plan's and the commit's."""
    if result is None:
        return []
    found = {name.replace("_", " "): result[name] for name in names}
    found |= {name: result["provenance"].get(name) for name in ("preregistration", "git_commit")}
    return [(name.replace("_", " "), value) for name, value in found.items() if value]
