"""Searches DSQ and HCAP settings: least loss within a traffic limit, on texts that are not evaluated.

Every field of `SPACE` has a list of values. A local search changes one or two fields of the best settings so far by one
or two places in their lists, and keeps what has the least merit (see `merit`). Each trial is one line of the log, from
which a search goes on.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from golden.account import check_bursts
from golden.calibrate import calibration_for
from golden.errors import UserError, main_guard
from golden.kvo_method import KvoMethod
from golden.model import Model, load_model, prefill, texts
from golden.model.tokenizer import ModelTokenizer
from golden.scoring import Reference, check_groups, check_scored, score, steps
from golden.settings import KvoSettings, default_settings

__all__ = ["SPACE", "Trial", "best_trial", "main", "merit", "neighbours", "search"]

SPACE: Mapping[str, tuple[int | float, ...]] = {
    "salient_tokens": (6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20),
    "sink_tokens": (1, 2, 4, 8),
    "delta_bits": (2, 4),
    "history_drop": (0.0, 0.1, 0.2, 0.25, 0.27, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7),
    "keep_fraction": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8, 1.0),
    "estimate_margin": (4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5, 10.0, 11.0, 12.0),
    "value_margin": (4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 10.0),
}
"""Field of `KvoSettings` -> the values that are tried, ascending."""

TRAFFIC_LIMIT = 0.0763
"""On `texts.TUNING`: the texts of the evaluation take 5.8% more, 8.07%."""
CALIBRATION_CONTEXT = 4096
PENALTY = 4
"""Exponent of the excess over the limit: traffic above it is then never worth the loss that it saves."""

Trial = dict[str, Any]
"""`settings`, `kl`, `read` (in the measure that the limit is for) and what the trial was run on."""


def merit(trial: Trial, limit: float) -> float:
    """What the search minimizes: the KL divergence, times a penalty for traffic above the limit."""
    return float(trial["kl"] * max(1.0, trial["read"] / limit) ** PENALTY)


def best_trial(trials: Sequence[Trial], limit: float) -> Trial | None:
    """The trial with the least KL divergence among those within the limit."""
    return min((trial for trial in trials if trial["read"] <= limit), key=lambda trial: trial["kl"], default=None)


def neighbours(settings: KvoSettings, chance: random.Random) -> Iterator[KvoSettings]:
    """An endless series of settings near `settings`: one or two fields one or two places further, at random."""
    while True:
        move: dict[str, Any] = {}
        for field in chance.sample(list(SPACE), chance.choice((1, 2, 2))):
            values = SPACE[field]
            nearest = min(range(len(values)), key=lambda i: abs(values[i] - getattr(settings, field)))
            place = nearest + chance.choice((-2, -1, 1, 2))
            move[field] = values[min(max(place, 0), len(values) - 1)]
        yield replace(settings, **move)


def search(
    run: Callable[[KvoSettings], Trial],
    start: KvoSettings,
    trials: list[Trial],
    *,
    limit: float,
    proceed: Callable[[], bool],
    seed: int = 0,
) -> None:
    """Append trials to `trials` while `proceed()`, starting at `start` or at the best of `trials`.

    Two of three proposals start from the best trial, the others from one of the five best.
    """
    chance = random.Random(f"{seed} {len(trials)}")
    tried = {_key(trial["settings"]) for trial in trials}
    if _key(asdict(start)) not in tried:
        trials.append(run(start))
        tried.add(_key(asdict(start)))
    while proceed():
        ranked = sorted(trials, key=lambda trial: merit(trial, limit))
        origin = ranked[0] if chance.random() < 2 / 3 else chance.choice(ranked[:5])
        proposals = neighbours(KvoSettings(**origin["settings"]), chance)
        fresh = next((s for _, s in zip(range(1000), proposals, strict=False) if _key(asdict(s)) not in tried), None)
        if fresh is None:
            return
        tried.add(_key(asdict(fresh)))
        trials.append(run(fresh))


def _key(settings: Mapping[str, Any]) -> str:
    """Settings as one string."""
    return json.dumps(settings, sort_keys=True)


class _Bench:
    """Runs trials on windows of texts: of the calibration text behind the part that the tables are calibrated on."""

    def __init__(self, model: Model, args: argparse.Namespace, bursts: tuple[int, ...]) -> None:
        self._model, self._args, self._bursts = model, args, bursts
        self._measure = None if args.measure == "exact" else int(args.measure)
        self._calibration = min(CALIBRATION_CONTEXT, model.config.context_length // 64 * 64)
        tokenizer, self.starts, samples = ModelTokenizer(model.file), [], []
        for text in args.text:
            ids = tokenizer.encode(texts.read(text))
            starts = self._windows(text, len(ids) - 1 - args.context)
            self.starts.append(starts)
            for start in starts:
                window = ids[start : start + args.context + 1]
                samples.append(prefill(model, window, args.context, progress=not args.quiet))
        self._references = [Reference.of(model, sample, args.scored) for sample in samples]
        self.setup = {
            "model": model.config.name,
            "text": args.text,
            "context": args.context,
            "scored": args.scored,
            "starts": self.starts,
            "measure": args.measure,
        }

    def _windows(self, text: str, last: int) -> list[int]:
        """First tokens of the windows of a text, of which ``last`` is the last possible one."""
        args, first = self._args, 0
        if text == texts.CALIBRATION:
            first = min(self._calibration, last)
            if last + args.context - args.scored < self._calibration:
                last = -1
        if last < 0:
            raise UserError(f"text {text!r} is too short: {args.context} tokens are needed that no table is made of")
        return [first + (last - first) * i // max(args.windows - 1, 1) for i in range(args.windows)]

    def run(self, settings: KvoSettings) -> Trial:
        """One trial, with a bar of its own."""
        begin = time.perf_counter()
        model, args = self._model, self._args
        calibration = calibration_for(model, settings, context=self._calibration, progress=not args.quiet)
        method = KvoMethod(settings, calibration)
        total = steps(model, args.scored) * len(self._references)
        with tqdm(total=total, desc="trial", unit="layer", leave=False, disable=args.quiet, position=1) as bar:
            scores = [score(model, method, reference, self._bursts, bar.update) for reference in self._references]
        accounts = [outcome.account for outcome in scores]
        reads = [a.read_fraction if self._measure is None else a.burst_fraction(self._measure) for a in accounts]
        return {
            **self.setup,
            "settings": asdict(settings),
            "kl": sum(float(outcome.kl.mean()) for outcome in scores) / len(scores),
            "read": sum(reads) / len(reads),
            "read_exact": sum(account.read_fraction for account in accounts) / len(accounts),
            "stored_bits": sum(account.stored_bits_per_element for account in accounts) / len(accounts),
            "ppl_ratio": sum(outcome.ppl / outcome.ppl_reference for outcome in scores) / len(scores),
            "seconds": round(time.perf_counter() - begin, 1),
        }


def load_trials(path: Path, setup: Mapping[str, Any]) -> list[Trial]:
    """The trials of the log at `path` that were run on `setup`; a last line that was cut off is removed."""
    trials: list[Trial] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return trials
    except OSError as error:
        raise UserError(f"cannot read the log {path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            trial = json.loads(line)
            KvoSettings(**trial["settings"])
        except (ValueError, TypeError, KeyError):
            if number < len(lines):
                raise UserError(f"line {number} of the log {path} is no trial: name another log with --log") from None
            path.write_text("".join(f"{whole}\n" for whole in lines[:-1]), encoding="utf-8")
            break
        if all(trial.get(key) == value for key, value in setup.items()):
            trials.append(trial)
    return trials


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m golden.tune",
        description="Searches DSQ and HCAP settings on texts that are not evaluated: least KL divergence from the "
        "uncompressed model within a traffic limit. A search that was stopped goes on from its log.",
        epilog="Use the result with python -m golden.evaluate --settings FILE; golden/settings.toml has the defaults.",
    )
    made.add_argument(
        "--model", metavar="FILE", help="GGUF file of a Llama-type model (default: SmolLM2-135M-Instruct)"
    )
    made.add_argument(
        "--text",
        nargs="+",
        default=list(texts.TUNING),
        metavar="T",
        help=f"text names or UTF-8 files (default: {' '.join(texts.TUNING)})",
    )
    made.add_argument("--context", type=int, default=4096, metavar="TOKENS", help="default: %(default)s")
    made.add_argument("--scored", type=int, default=512, metavar="TOKENS", help="per window (default: %(default)s)")
    made.add_argument("--windows", type=int, default=1, help="parts of each text to score (default: %(default)s)")
    made.add_argument("--limit", type=float, default=TRAFFIC_LIMIT, help="share of FP16 traffic (default: %(default)s)")
    made.add_argument(
        "--measure", default="exact", help="what the limit is for: exact bits or a burst size in bytes (default: exact)"
    )
    made.add_argument("--budget", type=float, default=60, metavar="MINUTES", help="default: %(default)s")
    made.add_argument("--start", metavar="FILE", help="TOML file of settings to start from (default: the tuned ones)")
    made.add_argument("--seed", type=int, default=0, help="of the random proposals (default: %(default)s)")
    made.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("build/tune/settings.toml"),
        help="best settings (default: %(default)s)",
    )
    made.add_argument(
        "--log", type=Path, default=Path("build/tune/trials.jsonl"), help="one line per trial (default: %(default)s)"
    )
    made.add_argument("--quiet", action="store_true", help="no progress bars")
    return made


@main_guard
def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    args = parser().parse_args(arguments)
    check_scored(args.scored, args.context)
    if args.windows < 1 or not args.limit > 0 or not args.budget > 0:
        raise UserError("--windows, --limit and --budget must be above 0")
    try:
        bursts = check_bursts(
            tuple(sorted({32, 64} | ({int(args.measure)} - {0} if args.measure != "exact" else set())))
        )
    except ValueError:
        raise UserError(f"--measure must be 'exact' or a burst size in bytes, not {args.measure!r}") from None
    start = KvoSettings.from_toml(args.start) if args.start else default_settings()
    check_groups(start.group_tokens, args.scored, args.context)
    try:
        for path in (args.output, args.log):
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder of {path}: {error.strerror}") from error
    bench = _Bench(load_model(args.model), args, bursts)
    trials = load_trials(args.log, bench.setup)
    end = time.monotonic() + 60 * args.budget
    with tqdm(total=round(args.budget, 1), unit="min", disable=args.quiet, position=0) as bar:

        def run(settings: KvoSettings) -> Trial:
            trial = bench.run(settings)
            try:
                with args.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(trial) + "\n")
                best = best_trial([*trials, trial], args.limit)
                if best is not None:
                    args.output.write_text(KvoSettings(**best["settings"]).to_toml(), encoding="utf-8")
            except OSError as error:
                raise UserError(f"cannot write {error.filename}: {error.strerror}") from error
            bar.n = round(min(args.budget, args.budget - (end - time.monotonic()) / 60), 1)
            shown = f"{len(trials) + 1} trials"
            bar.set_description(shown if best is None else f"{shown}, KL {best['kl']:.5f} at {100 * best['read']:.2f}%")
            return trial

        search(run, start, trials, limit=args.limit, proceed=lambda: time.monotonic() < end, seed=args.seed)
    best = best_trial(trials, args.limit)
    if best is None:
        raise UserError(f"none of {len(trials)} trials stays within {100 * args.limit:g}% of FP16 traffic: run on")
    first = next(trial for trial in trials if trial["settings"] == asdict(start))
    for name, trial in (("start", first), ("best", best)):
        print(f"{name:6}KL {trial['kl']:.5f}, reads {100 * trial['read']:.2f}%, {_key(trial['settings'])}")
    print(f"{len(trials)} trials in {args.log}; best settings in {args.output}")


if __name__ == "__main__":
    main(sys.argv[1:])
