"""What the paper claims, and we beside it, with what the runs at hand say about each: computed from their own results.

A claim is looked at run by run, over the latest whole run of each configuration. It holds where every run that decides
it says so, does not hold where every one says that, and is undecided where they disagree or none decides; a theorem or
a target is refuted by a single run. A run decides where an interval lies on one side, as each measurement says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from plsh_cli.report import claims_compare, claims_matrix, claims_models, claims_speed
from plsh_cli.report.evidence import FAILS, HOLDS, NOT_MEASURED, UNDECIDED, Evidence
from plsh_cli.report.library import Record

SHOWN = 3  # runs under a claim with what they say; the others are named

Finder = Callable[[Record], Evidence | None]


@dataclass(frozen=True)
class Claim:
    """One claim. of: "paper" or "plsh" (what the paper leaves open). command: whose runs would say something about it.

    evidence: what each run says, those against it first, and of those that say the same the longest first. others: the
    runs beyond SHOWN, whose words are not told.
    """

    text: str
    of: str
    command: str
    verdict: str
    evidence: Sequence[Evidence]
    others: Sequence[Evidence] = ()


@dataclass(frozen=True)
class _Question:
    text: str
    command: str
    find: Finder
    of: str = "paper"
    strict: bool = False


APPROX, OUTPUT, SPEED = "approx", "attn-error", "bench attention"
BASELINES = "attn-error --biases plsh,window,fixed_blocks"
SCRATCH = "train experiment=miniature"
TUNED = "finetune bias.num_samples=5,10,20,40 --multirun"
TARGETS = "bench attention experiment=attention_targets"
_QUESTIONS = (
    _Question(
        "The expected spectral error of M~ stays below Ψ (√(ln n / s) + ln n / s)",
        APPROX,
        claims_matrix.expectation,
    ),
    _Question("The error of M~ falls as 1/√s", APPROX, claims_matrix.rate),
    _Question("The tail bound on the spectral error is not violated", APPROX, claims_matrix.tail),
    _Question("The max norm of the error stays below its bound", APPROX, claims_matrix.max_norm),
    _Question(
        "No row of the attention output is further off than the theorem allows",
        OUTPUT,
        claims_matrix.output_bound,
        strict=True,
    ),
    _Question("The error of the attention output falls as 1/√s", OUTPUT, claims_matrix.output_rate),
    _Question("From scratch, positional LSH comes close to exact ALiBi (within 5 %)", SCRATCH, claims_models.close),
    _Question("From scratch, it is better than the original model (RoPE)", SCRATCH, claims_models.original),
    _Question("It holds at twice the training length", SCRATCH, claims_models.twice),
    _Question("From scratch, it is better than fixed blocks", SCRATCH, claims_models.scratch_blocks),
    _Question("Fine-tuned, quality approaches exact ALiBi as s grows", TUNED, claims_models.approaches),
    _Question("Fine-tuned, it is better than fixed blocks", TUNED, claims_models.tuned_blocks),
    _Question("Attention is faster than dense attention with the ALiBi mask", SPEED, claims_speed.faster),
    _Question("Its time grows about linearly with the length (exponent below 1.2)", TARGETS, claims_speed.growth),
    _Question("plsh meets its targets of speed and memory", TARGETS, claims_speed.targets, of="plsh", strict=True),
    _Question(
        "At equal pairs, the attention output is nearer to exact ALiBi than fixed blocks'",
        BASELINES,
        claims_matrix.better_than_blocks,
        of="plsh",
    ),
    _Question(
        "At equal pairs, it is nearer to exact ALiBi than ALiBi cut at a distance",
        BASELINES,
        claims_matrix.better_than_window,
        of="plsh",
    ),
    _Question(
        "At equal cost, it is better than fixed blocks",
        "compare --baseline fixed_blocks",
        claims_compare.blocks,
        of="plsh",
    ),
    _Question(
        "At equal cost, it is better than ALiBi cut at a distance",
        "compare --baseline window",
        claims_compare.window,
        of="plsh",
    ),
    _Question(
        "It is faster than exact ALiBi cut at 0.001",
        SPEED,
        claims_speed.faster_than_window,
        of="plsh",
    ),
    _Question(
        "Stratified draws have a smaller error than i.i.d. ones at the same s",
        "approx experiment=stratified_gain",
        claims_matrix.stratified,
        of="plsh",
    ),
)


def weigh(records: Iterable[Record]) -> list[Claim]:
    """Every claim with its verdict over these runs; a run whose result does not have what it should says nothing."""
    found: dict[int, list[Evidence]] = {place: [] for place in range(len(_QUESTIONS))}
    for record in records:
        for place, question in enumerate(_QUESTIONS):
            try:
                said = question.find(record)
            except Exception:
                continue  # a damaged result, or one of another version
            if said is not None:
                found[place].append(said)
        record.forget()
    return [_claim(question, found[place]) for place, question in enumerate(_QUESTIONS)]


def _claim(question: _Question, said: Sequence[Evidence]) -> Claim:
    order = {FAILS: 0, HOLDS: 1, UNDECIDED: 2}
    newest = sorted(said, key=lambda one: one.record.started or "", reverse=True)
    longest = sorted(newest, key=lambda one: one.record.seconds or 0.0, reverse=True)
    ranked = sorted(longest, key=lambda one: order[one.verdict])
    verdict = verdict_of([one.verdict for one in said], question.strict)
    return Claim(question.text, question.of, question.command, verdict, ranked[:SHOWN], ranked[SHOWN:])


def verdict_of(said: Sequence[str], strict: bool = False) -> str:
    """The verdict over several runs' verdicts; see the module's head."""
    decided = [one for one in said if one != UNDECIDED]
    if not said:
        return NOT_MEASURED
    if strict and FAILS in decided:
        return FAILS
    return decided[0] if len(set(decided)) == 1 else UNDECIDED
