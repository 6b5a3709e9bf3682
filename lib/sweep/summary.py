"""What a sweep says at its end of a study: its arms and what they measured, the verdict on its
plan, and where to read more."""

from collections import defaultdict
from shutil import get_terminal_size

import pandas as pd

from lib.config.io import read_json, relative, result_file, study_folder
from lib.config.metrics import MEASURES, measures_in
from lib.config.preregistration import load_plan
from lib.config.study import Study
from lib.record.archive import Record, is_replaceable
from lib.results import RunResult
from lib.stats.runs import tidy
from lib.stats.tables import summary_table
from lib.stats.verdict import for_terminal


def summarise(study: Study) -> None:
    """Print a finished study's table, its verdict, and where to read more."""
    analysed, folder = result_file("03_analysis", study.name), study_folder(study.name)
    if not analysed.is_file():  # --until and the like
        print(f"{study.name}: not analysed, as the flags ask for a part only")
        return
    runs = tidy(RunResult.model_validate(run) for run in read_json(analysed)["runs"])
    verdict, plan = read_json(folder / "verdict.json"), load_plan(study)
    shown = {*measures_in("headline"), *(plan.primary_measures if plan else ())}
    differences = defaultdict[str, dict[str, str]](dict)
    for row in verdict["contrasts"]:
        if row["measure"] in shown:
            measure = MEASURES[row["measure"]]
            text = measure.estimate(row) if row["n"] > 1 else measure.text(row["mean_delta"], "+")
            differences[row["arm"]][measure.title] = text
    width, arms = get_terminal_size().columns, pd.DataFrame(differences)
    print(f"\n{study.name}, mean ± sd over {runs['seed'].nunique()} seeds:\n")
    print(summary_table(runs, "headline").to_string(line_width=width))
    if len(arms):
        print("\nPaired differences from the arm's baseline, with their intervals:\n")
        print((arms if arms.shape[1] <= 6 else arms.T).to_string(line_width=width))
    if plan:
        print("", *for_terminal(verdict, width), sep="\n")
    record = Record(study.name)
    place = record.place if is_replaceable(study.name) else folder
    print(f"\nAll measures        {relative(analysed.with_suffix('.ipynb'))}")
    print(f"Executed notebooks  {relative(place)}/")
    print(f"Numbers             {relative(record.results_file)}")
    print(f"To check the record ./run_all.sh verify {study.name}")
