"""The table of all runs: its columns, and what each run has in them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lib.publish.catalogue import NotebookEntry, StudyEntry
from lib.study.config import arm_id
from lib.study.fields import CODE, FIELDS
from lib.study.measures import MEASURES, measures_in


@dataclass(frozen=True)
class Column:
    """A factor that some study varies, or a measure."""

    name: str
    label: str
    studies: frozenset[str] = frozenset()
    """Those that vary it."""
    words: tuple[str, ...] = ()
    """Its values, where some of them are no numbers."""

    @property
    def common(self) -> bool:
        """Whether it is always shown, not only when a study that varies it is chosen."""
        return len(self.studies) != 1

    @property
    def is_measure(self) -> bool:
        return not self.studies

    def value(self, run: NotebookEntry) -> Any:
        """Return what a run has here: a measure, a level or, of what its study leaves alone, the
        field of its configuration; None where it has left none."""
        if self.is_measure:
            return run.measures.get(self.name)
        section, _, name = self.name.partition(".")
        fixed = (run.result or {}).get("config", {}).get(section, {})
        return run.levels.get(self.name, fixed.get(name) if isinstance(fixed, dict) else None)

    def text(self, run: NotebookEntry) -> str:
        """Write a factor as names of arms do: `0.003`, `true`, `none`."""
        value = self.value(run)
        return "" if value is None else arm_id({self.name: value}).rpartition("=")[2]

    def plain(self, run: NotebookEntry) -> float | str:
        """Return what filters and sorting compare: a number or, of words, the text."""
        value = self.value(run)
        return self.text(run) if self.words else "" if value is None else value


def columns(studies: Iterable[StudyEntry]) -> list[Column]:
    """List the measures, then the factors of some studies, those that most of them vary first."""
    runs = [run for study in studies for run in study.runs]
    varied: dict[str, set[str]] = {}
    for run in runs:
        for name in run.levels:
            if name in FIELDS or name == CODE:
                varied.setdefault(name, set()).add(run.study)
    found = [Column(name, MEASURES[name].label) for name in measures_in("headline")]
    for name, of in sorted(varied.items(), key=lambda pair: -len(pair[1])):
        column = Column(name, name.rpartition(".")[2].replace("_", " "), frozenset(of))
        values = [column.value(run) for run in runs]
        if not all(value is None or type(value) in (int, float) for value in values):
            words = dict.fromkeys(text for run in runs if (text := column.text(run)))
            column = Column(name, column.label, column.studies, tuple(words))
        found.append(column)
    return found
