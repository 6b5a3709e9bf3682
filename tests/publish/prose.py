"""A checklist for generated prose: what a reader stumbles over, and a program can find."""

import re
from collections.abc import Iterator

INTERVAL = r" \[[+−]?[\d.,]+%?, [+−]?[\d.,]+%?\]"
"""It belongs to the estimate before it and is no number of its own."""
NAMES = r"GPT-\d|GLM-\d+B|OLMo \d|\bH[01][ab]?\b"
NUMBER = r"(?<![\w.])[+−]?\d[\d.,]*\d%?|(?<![\w.])[+−]?\d%?"
MOST_NUMBERS, MOST_WORDS = 2, 50


def paragraphs(markdown: str) -> Iterator[str]:
    """Yield the paragraphs, captions and items of a manuscript, each on one line: what stands
    neither in a table, a formula of its own, a heading nor the head of the file."""
    text = re.sub(r"\A---\n.*?^---\n", "", markdown, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#+ |:::|```).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(#\.|-) ", "\n", text, flags=re.MULTILINE)
    yield from (" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())


def sentences(markdown: str) -> list[str]:
    """Return the sentences of a manuscript. A run-in title (`**Dose.**`) is none."""
    found = []
    for text in paragraphs(markdown):
        text = re.sub(r"^\*\*[^*]+\*\*(?: \([^)]*\)\.)?", "", text).strip()
        found += re.split(r"(?<=[.?!])\*? (?=[*\"@$]*[A-Z]|`)", text)
    return [sentence for sentence in found if sentence]


def numbers(sentence: str) -> list[str]:
    """Return the numbers of a sentence; a formula has none, and an estimate's interval is none."""
    for part in (INTERVAL, r"\$[^$]*\$", r"`[^`]*`", r"\]\([^)]*\)", r"@[\w:-]+", NAMES):
        sentence = re.sub(part, "", sentence)
    return re.findall(NUMBER, sentence)


def faults(sentence: str) -> list[str]:
    """Say what is wrong with a sentence."""
    plain = re.sub(rf"{INTERVAL}|\]\([^)]*\)", "", sentence)
    plain = re.sub(r"`[^`]*`|\$[^$]*\$", "X", plain)
    items = r"(?:[\w*@-]+ ){0,3}[\w*@-]+"
    lists = re.findall(rf"{items}(?:, {items})+,? (?:and|or) {items}", plain)
    checks = {
        "a doubled word": re.search(r"\b(\w+) \1\b", plain, re.IGNORECASE),
        "two clauses spliced": re.search(r"\bdiffer\b.*\band are not (shown|tested)\b", plain),
        "a list in a list": any(len(re.findall(r" (?:and|or) ", part)) > 1 for part in lists),
        "too many numbers": len(numbers(sentence)) > MOST_NUMBERS,
        "too long": len(plain.split()) > MOST_WORDS,
        "a missing value": re.search(r"\bn/a\b|\bNone\b|\bnan\b|\{\}|\{size\}", plain),
        "a stray mark": re.search(r" [.,;:?]|\.\.|,,|\( | \)", plain),
        "no capital at its beginning": not re.match(r"[*\"(\[]*(?:[A-Z@]|X\b)", plain),
        "no end": not re.search(r"[.?!:]\)?\*?$", plain),
    }
    return [name for name, wrong in checks.items() if wrong]


def answers(markdown: str) -> list[str]:
    """Return questions and answers of a table of three columns: the last holds evidence."""
    rows = [line.strip().strip("|").split(" | ") for line in markdown.splitlines()]
    tables = [cells[:-1] for cells in rows if len(cells) == 3 and "Question" not in cells[0]]
    return [cell.strip() for cells in tables for cell in cells]


def abstract(markdown: str) -> str:
    """Return the text of the abstract, on one line."""
    found = re.search(r"^::: \{\.abstract\}\n(.*?)^:::", markdown, re.DOTALL | re.MULTILINE)
    assert found
    return " ".join(found[1].split())
