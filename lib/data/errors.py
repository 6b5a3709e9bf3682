"""What is wrong with a corpus, in one line that names the field and the remedy."""

from lib.study.errors import UserError


class CorpusError(UserError):
    """A corpus that cannot be used; the message says why and what to do."""


class MissingCorpusError(CorpusError):
    """A known corpus that is neither here nor to be downloaded."""
