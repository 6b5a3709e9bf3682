"""Write training curves of runs as TensorBoard event files."""

from pathlib import Path

from lib.config.errors import UserError
from lib.config.paths import RUNS, listed
from lib.record.archive import Record, papers_named, recorded_studies
from lib.results import raw_file, read_raw_file


def main(papers: list[str], folder: Path) -> None:
    """Write your own runs, or those of the papers named, as folders STUDY/ARM/seed-N of event
    files. Raises UserError if tensorboardX is missing: nothing else needs it."""
    studies = {path.name: path for path in listed(RUNS, "*")}
    if papers:
        names = [
            (name, paper) for paper in papers_named(papers) for name in recorded_studies(paper)
        ]
        studies = {name: Record(name, paper).raw for name, paper in names}
    for study, root in studies.items():
        for run in listed(root, "*/seed-*"):
            write_events(run, folder / study / run.relative_to(root))
    print(f"In a browser        tensorboard --logdir {folder}")


def write_events(run: Path, folder: Path) -> None:
    """Write each column of a run's trace and curve as a scalar by step, without missing values."""
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("--tensorboard: needs tensorboardX; uv pip install tensorboardX") from None
    with SummaryWriter(str(folder)) as writer:
        for name in ("trace", "curve"):
            if raw_file(run, name).is_file():
                table = read_raw_file(run, name).set_index("step")
                for column, values in table.items():
                    for step, value in values.dropna().items():
                        writer.add_scalar(f"{name}/{column}", value, step)
