"""The tokenizer of a corpus as a `tokenizer.json` of Hugging Face."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from lib.data.corpus import Corpus
from lib.data.subwords import BYTE_SYMBOLS, PairTokenizer
from lib.data.tokenizer import Characters

END = "<|endoftext|>"
"""How the end of a document is called, where the tokenizer has no name for it."""


def tokenizer_json(corpus: Corpus) -> str:
    """Write the tokenizer of a corpus: same ids for same text. Characters that a corpus lacks
    cannot be encoded."""
    own = corpus.tokenizer
    if isinstance(own, PairTokenizer):
        return str(corpus.account["tokenizer"][1])
    if isinstance(own, Characters):
        peer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(own.text)}, END))
        peer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        peer.decoder = decoders.Fuse()
    else:
        peer = Tokenizer(models.BPE(dict(BYTE_SYMBOLS), []))
        peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        peer.decoder = decoders.ByteLevel()
    if own.end_of_document is not None:
        peer.add_special_tokens([AddedToken(END, special=True)])
    return str(peer.to_str(pretty=True))


def end_name(corpus: Corpus) -> str | None:
    """What the token that ends a document is called there; None where there is none."""
    end = corpus.tokenizer.end_of_document
    return None if end is None else str(Tokenizer.from_str(tokenizer_json(corpus)).id_to_token(end))
