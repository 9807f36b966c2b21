"""The texts of `plsh attn-error`: documents of a corpus, or windows of words over all of its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plsh_cli.config.schema.lab import AttnErrorCommand
from plsh_cli.data.corpus import Document
from plsh_cli.errors import UserError
from plsh_cli.experiments.texts import Corpus, open_corpus

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

#: Words for one token, as the paper's code reckons.
WORDS_PER_TOKEN = 0.75
#: A window's words are this many tokens at most; a text that needs more is cut.
_TOKENS_PER_WORD = 16


@dataclass(frozen=True)
class Chosen:
    """Token ids (1, n) of each text, one line about all of them, and details for result.json."""

    ids: list[torch.Tensor]
    label: str
    details: dict[str, Any]


def choose(cfg: AttnErrorCommand, tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]) -> Chosen:
    """The texts that the configuration asks for, as the tokenizer gives them.

    Raises UserError for a document that is not there and for a corpus or document that is too short, and what opening
    the corpus raises.
    """
    return (_documents if cfg.attn_error.texts == "documents" else _windows)(cfg, tokenizer, say)


def document_index(cfg: AttnErrorCommand, count: int) -> int:
    """Which of `count` documents data.document is, from 0; UserError where it is not there."""
    index = cfg.data.document
    if not -count <= index < count:
        raise UserError(
            "data.document", index, f"must lie in {-count} .. {count - 1}: {cfg.data.name} has {count} documents"
        )
    return index % count


def _documents(cfg: AttnErrorCommand, tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]) -> Chosen:
    """The first tokens of data.document; of several, also of those after it (before it, if counted from the end)."""
    from plsh_cli.data.tokens import first_tokens

    wanted, count = cfg.attn_error.tokens, cfg.attn_error.inputs
    corpus = open_corpus(cfg.data, say)
    ids: list[torch.Tensor] = []
    kept: list[tuple[int, Document]] = []
    seen = 0
    for index, document in _from(cfg, corpus):
        seen += 1
        found = first_tokens(tokenizer, document.text, wanted)
        if found.shape[1] == wanted:
            ids.append(found)
            kept.append((index, document))
        elif count == 1:
            allowed = f"document {document.name} has only {found.shape[1]} tokens; use fewer, or data.document=..."
            raise UserError("attn_error.tokens", wanted, f"{allowed} for another", "--tokens")
        if len(ids) == count:
            break
    if len(ids) < count:
        allowed = f"only {len(ids)} of the {seen} documents from {cfg.data.document} on have {wanted} tokens"
        raise UserError("attn_error.inputs", count, allowed, "--inputs")
    return Chosen(ids, _documents_label(cfg, [one for _, one in kept]), _documents_details(cfg, corpus, kept))


def _from(cfg: AttnErrorCommand, corpus: Corpus) -> Iterator[tuple[int, Document]]:
    """Documents with their numbers: from data.document on forwards, or backwards where it counts from the end."""
    first = cfg.data.document
    if first >= 0:
        count = 0
        for count, document in enumerate(corpus.documents, start=1):
            if count > first:
                yield count - 1, document
        if count <= first:
            document_index(cfg, count)
        return
    every = list(corpus.documents)
    for index in range(document_index(cfg, len(every)), -1, -1):
        yield index, every[index]


def _documents_label(cfg: AttnErrorCommand, kept: Sequence[Document]) -> str:
    tokens = f"first {cfg.attn_error.tokens:,} tokens"
    if len(kept) > 1:
        return f"{len(kept)} documents of {cfg.data.name} ({kept[0].name} .. {kept[-1].name}), {tokens} of each"
    known = ", ".join(fact for fact in (kept[0].president, kept[0].date) if fact)
    return f"{kept[0].name}{f' ({known})' if known else ''}, {tokens}"


def _documents_details(cfg: AttnErrorCommand, corpus: Corpus, kept: Sequence[tuple[int, Document]]) -> dict[str, Any]:
    first = kept[0][1]
    own = {"date": first.date, "president": first.president, "form": first.form} if len(kept) == 1 else {}
    return {
        **corpus.details,
        "document": first.name,
        "index": kept[0][0],
        **own,
        "documents": [one.name for _, one in kept],
        "tokens": [cfg.attn_error.tokens] * len(kept),
    }


def _windows(cfg: AttnErrorCommand, tokenizer: PreTrainedTokenizerBase, say: Callable[[str], None]) -> Chosen:
    """int(tokens * 0.75) words each, max(words, all words // (inputs + 1)) words apart, as the paper's code takes them.

    Under protocol=corrected all are cut to the tokens of the shortest, so that one M~ serves them all.
    """
    from plsh_cli.data.tokens import first_tokens

    count, words = cfg.attn_error.inputs, int(cfg.attn_error.tokens * WORDS_PER_TOKEN)
    corpus = open_corpus(cfg.data, say)
    total = sum(len(document.text.split()) for document in corpus.documents)
    stride = max(words, total // (count + 1))
    if words < 1 or (count - 1) * stride + words > total:
        allowed = f"{count} texts of {words:,} words: {cfg.data.name} has {total:,} words; use fewer or shorter ones"
        raise UserError("attn_error.inputs", count, allowed, "--inputs")
    starts = [place * stride for place in range(count)]
    pieces = _cut(open_corpus(cfg.data, say).documents, starts, words)
    ids = [first_tokens(tokenizer, text, _TOKENS_PER_WORD * words) for text in pieces]
    lengths = [one.shape[1] for one in ids]
    if cfg.protocol == "corrected":
        ids = [one[:, : min(lengths)] for one in ids]
    sizes = [one.shape[1] for one in ids]
    told = f"{sizes[0]:,}" if len(set(sizes)) == 1 else f"{min(sizes):,} to {max(sizes):,}"
    label = f"{count} {'text' if count == 1 else 'texts'} of {words:,} words of {cfg.data.name}, {told} tokens"
    details = {**corpus.details, "words": words, "stride": stride, "all_words": total, "tokens": sizes}
    return Chosen(ids, label, details | {"tokens_before_cutting": lengths})


def _cut(documents: Iterator[Document], starts: Sequence[int], words: int) -> list[str]:
    """The words start .. start + words of all text, for ascending starts at least `words` apart, joined with spaces."""
    found: list[list[str]] = [[] for _ in starts]
    before = 0
    for document in documents:
        here = document.text.split()
        for place, start in enumerate(starts):
            first, last = max(start - before, 0), start + words - before
            if first < len(here) and last > 0:
                found[place] += here[first:last]
        before += len(here)
    return [" ".join(piece) for piece in found]
