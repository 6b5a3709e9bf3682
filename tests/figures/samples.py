"""Made-up runs of a study, their raw files, and what an analysis would say of them."""

import json

import pandas as pd

from lib.config.study import Study
from lib.figures import study as study_figures
from lib.figures import style
from lib.figures.study import StudyFigures
from tests.conftest import TINY
from tests.samples import made_up

RATE = "training.learning_rate"
TABLES = {
    "temperatures": [{"temperature": t, "nll": 2 + (t - 1) ** 2, "ece": t / 9} for t in (0.5, 1.0)],
    "tasks": [{"task": "spelling", "shots": i, "normalised_accuracy": 0.4} for i in (0, 2)],
}


def study_of(factors):
    return Study.model_validate(TINY | {"name": "tiny", "factors": factors, "seeds": [0, 1]})


ONE_ARM = study_of({})
ONE_FACTOR = study_of({"model.embedding_norm": ["none", "layernorm"]})
GRID = study_of({"model.embedding_norm": ["none", "layernorm"], RATE: [1e-3, 1e-2, 1e-1]})


def runs_of(study, kept):
    return [
        made_up(study, arm, seed).model_copy(
            update={"measures": {"perplexity": 20.0 + seed + len(arm.id)}, "tables": kept}
        )
        for arm in study.arms()
        for seed in study.seeds
    ]


def series_of(study):
    """What traces and curves hold, in one table."""
    parts = [
        pd.DataFrame({"step": [0, 4, 8, 12]}).assign(
            arm=arm.id, seed=seed, variant=arm.variant, setting=arm.setting
        )
        for arm in study.arms()
        for seed in study.seeds
    ]
    table = pd.concat(parts, ignore_index=True)
    falling = 4 - 0.1 * table["step"] + 0.1 * table["seed"]
    columns = ["dev_loss", "loss", "grad_norm", "embedding_norm", "embedding_cosine"]
    columns += ["residual_norm_0", "residual_norm_1", "second_moment_mean", "second_moment_attn"]
    values = dict.fromkeys(columns, falling)
    return table.assign(tokens=64 * table["step"], **values)


def raw_of(study, name):
    """What the raw files of one name hold."""
    series = series_of(study)
    first = series[series["step"] == 0].drop(columns="step")
    n = {"bins": 5, "positions": 3}.get(name)
    if n is None:
        return series
    rows = pd.concat([first.assign(bin=i, context=i + 1) for i in range(n)], ignore_index=True)
    rows = rows.assign(binning="equal_mass", n=10, position_loss=3 - 0.1 * rows["context"])
    return rows.assign(confidence=rows["bin"], correct=0.9 * rows["bin"])


def verdict_of(study):
    numbers = {"mean_delta": -1.0, "t_low": -2.0, "t_high": None, "n_dropped": 0}
    pairs = [(arm.id, arm.baseline) for arm in study.arms() if arm.id != arm.baseline]
    first, second = (list(study.arms()) * 2)[:2]  # a study of one arm has no second
    contrasts = [
        {"arm": arm, "baseline": baseline, "measure": measure} | numbers
        for measure in ("perplexity", "ece")
        for arm, baseline in [*pairs, (second.id, first.id)]
    ]
    return {
        "standing": "EXPLORATORY",
        "contrasts": contrasts,
        "effects": [],
        "hypothesis_tests": [],
    }


def analysed(study, folder, patch, kept=TABLES, **found):
    """The figures of a study whose analysis, with what it `found` besides, lies in `folder`."""
    patch.setattr(study_figures, "study_folder", lambda name: folder)
    patch.setattr(study_figures.of_runs, "read_parquet", raw_of)
    (folder / "verdict.json").write_text(json.dumps(verdict_of(study) | found), "utf-8")
    return StudyFigures(study, runs_of(study, kept))


def drawn(figures, patch, *names):
    """Every figure that applies, or those of these names, drawn, written and shown."""
    shown = []
    patch.setattr(style, "show", lambda figure: shown.append(figure) or b"PNG")
    for figure in figures.applicable():
        if not names or figure.name in names:
            figure.draw()
    return shown
