"""The study's five questions, answered from its results: each in a sentence with its number and
interval, and with words that follow from them.

    python -m lib.publish.answers    prints them as they stand in the README
"""

import json
import math
from typing import Any

from lib.publish.archive import verdict_file

Row = dict[str, Any]


class AnswerError(ValueError):
    """A result that an answer needs and that is not there."""


def verdict_of(study: str) -> dict[str, Any]:
    """Read what a study's analysis found; AnswerError when the study has no record."""
    path = verdict_file(study)
    if not path.is_file():
        raise AnswerError(f"study '{study}' has no record; run ./run_all.sh params/{study}.yaml")
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content


def find(verdict: dict[str, Any], table: str, **fields: object) -> Row:
    """Return the one row of a table with these fields; AnswerError when there is not just one."""
    found = [r for r in verdict.get(table, []) if all(r.get(k) == v for k, v in fields.items())]
    if len(found) != 1:
        raise AnswerError(f"{table}: {len(found)} rows have {fields}; one was expected")
    row: Row = found[0]
    return row


def interval(row: Row, form: str, of: str = "mean_delta") -> str:
    """Write an estimate with its 95 % interval."""
    return f"{row[of]:{form}} [{row['t_low']:{form}}, {row['t_high']:{form}}]"


def direction(row: Row, lower: str, higher: str, none: str) -> str:
    """Choose the words for an interval below, above or around zero, or one that is undefined."""
    if row["t_low"] is None or row["t_low"] <= 0 <= row["t_high"]:
        return none
    return lower if row["t_high"] < 0 else higher


def at_the_standard_setting() -> str:
    """Does it help at the standard setting?"""
    verdict = verdict_of("confirmatory")
    parts = []
    for arm, name in (("layernorm", "LayerNorm"), ("rmsnorm", "RMSNorm")):
        fields = {"arm": arm, "baseline": "none"}
        loss = find(verdict, "contrasts", measure="perplexity", **fields)
        task = find(verdict, "contrasts", measure="macro_accuracy_zero_shot", **fields)
        rule = find(verdict, "decisions", arm=arm)["rule"]
        parts.append(
            f"{name} {direction(loss, 'lowers', 'raises', 'does not detectably change')} "
            f"validation perplexity by {interval(loss, '+.3f')} and changes zero-shot macro "
            f"accuracy by {interval(task, '+.4f')} (rule {rule})"
        )
    n = find(verdict, "contrasts", arm="layernorm", baseline="none", measure="perplexity")["n"]
    whole = f"{'; '.join(parts)}; n = {n} seeds, {verdict['standing'].lower()}."
    helps = {r["decision"] for r in verdict["decisions"] if r["arm"] in ("layernorm", "rmsnorm")}
    return f"{'No' if helps == {'keep the baseline'} else 'It depends'}: {whole}"


def normalization_or_scale() -> str:
    """Is it normalization, or scale?"""
    verdict = verdict_of("confirmatory")
    shares = {r["ingredient"]: r for r in verdict["mechanism"] if r["measure"] == "perplexity"}
    text = ", ".join(
        f"{name} {row['share']:.0%} [{row['low']:.0%}, {row['high']:.0%}]"
        for name, row in shares.items()
    )
    largest = max(shares.values(), key=lambda row: abs(row["share"]))
    center = find(verdict, "contrasts", arm="center", baseline="none", measure="perplexity")
    return (
        f"Mostly {largest['ingredient']}: of LayerNorm's change in perplexity, {text}; centring "
        f"alone changes {interval(center, '+.3f')}, and must change nothing but rounding, since "
        "every reader of the residual stream subtracts the mean."
    )


def initialisation() -> str:
    """Does initialisation flip it?"""
    verdict = verdict_of("initialisation")
    rows = [
        r
        for r in verdict["contrasts"]
        if r["measure"] == "perplexity" and r["arm"].startswith("layernorm,")
    ]
    signs = {direction(row, "helps", "harms", "is undecided") for row in rows}
    word = "Yes" if {"helps", "harms"} <= signs else "It fades" if len(signs) > 1 else "No"
    text = ", ".join(
        f"{interval(row, '+.2f')} at a standard deviation of {row['arm'].rpartition('=')[2]}"
        for row in rows
    )
    return f"{word}: LayerNorm changes perplexity by {text} (n = {rows[0]['n']})."


def stable_rates() -> str:
    """Does it widen the stable learning-rate range?"""
    verdict = verdict_of("stability")
    none, layer = (find(verdict, "sensitivity", variant=v) for v in ("none", "layernorm"))
    base, best = (find(verdict, "best_rate", variant=v) for v in ("none", "layernorm"))
    scheduled = verdict_of("stability-warmup")
    warm_none, warm_layer = (
        find(scheduled, "sensitivity", variant=v)["stable_rates"] for v in ("none", "layernorm")
    )
    word = {"supported": "Yes", "not supported": "Not shown"}.get(layer["H1b"], "Not tested")
    return (
        f"{word}: its runs were stable at {layer['stable_rates']} of {layer['rates']} constant "
        f"rates, the baseline's at {none['stable_rates']}; with warm-up and a cosine, at "
        f"{warm_layer} and {warm_none}; its sensitivity to the constant rate differs by "
        f"{interval(layer, '+.3f')} nats; with each at its own best rate, {best['best_rate']:g} "
        f"against {base['best_rate']:g}, its test perplexity differs by "
        f"{interval(best, '+.2f')} (n = {layer['n']})."
    )


def tokens() -> str:
    """Does it save tokens?"""
    short = find(verdict_of("confirmatory"), "efficiency", arm="layernorm")
    verdict = verdict_of("horizon")
    long = find(verdict, "efficiency", arm="layernorm,fraction=1")
    steps = max(row["steps"] for row in verdict["budgets"])
    last = find(verdict, "budgets", arm=long["arm"], steps=steps)
    found = {
        direction({k: math.log(row[k]) for k in ("t_low", "t_high")}, "Yes", "No", "Undecided")
        for row in (short, long)
    }
    word = found.pop() if len(found) == 1 else "It depends on the budget"
    return (
        f"{word}: for the same dev loss LayerNorm needs {interval(short, '.2f', 'token_ratio')} "
        f"times the baseline's tokens (n = {short['n']}); over {steps:,} steps of a smaller model "
        f"{interval(long, '.2f', 'token_ratio')} times, where its dev loss ends "
        f"{interval(last, '+.3f')} nats away (n = {long['n']})."
    )


QUESTIONS = {
    "Does it help at the standard setting?": at_the_standard_setting,
    "Is it normalization or scale?": normalization_or_scale,
    "Does initialisation flip it?": initialisation,
    "Does it widen the range of stable learning rates?": stable_rates,
    "Does it save tokens?": tokens,
}


def answers() -> dict[str, str]:
    """Answer every question. AnswerError names what is missing."""
    return {question: answer() for question, answer in QUESTIONS.items()}


def as_markdown() -> str:
    """The answers as a numbered list."""
    return "\n".join(
        f"{i}. **{question}** {answer}" for i, (question, answer) in enumerate(answers().items(), 1)
    )


if __name__ == "__main__":
    print(as_markdown())
