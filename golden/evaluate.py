"""Evaluates DSQ+HCAP and its peers: traffic, storage and loss on a language model and texts, one account for all."""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from golden.account import DEFAULT_BURSTS, check_bursts
from golden.calibrate import calibration_for
from golden.errors import UserError, main_guard
from golden.integer_model import ACTIVATION_BITS, integer_model_for
from golden.kvo_method import KvoMethod
from golden.model import LanguageModel, Model, load_model, prefill, texts
from golden.peers import METHODS as PEERS
from golden.peers import CacheMethod, make_peer, override
from golden.peers.quantized import Fp16
from golden.scoring import Reference, Score, check_groups, check_scored, score, steps
from golden.settings import KvoSettings, default_settings

__all__ = ["Candidate", "Row", "candidates", "evaluate", "main", "table"]

OWN_METHODS = {"kvo-dsq": "DSQ alone, everything fetched", "kvo": "DSQ+HCAP"}
INTEGER_METHODS = {"integer": "attention in float", "integer-kvo": "DSQ+HCAP"}
"""In a model with the projections of the GEMM cores, so no methods of a cache alone: `all` does not stand for them."""
CALIBRATION_CONTEXT = 4096

Row = dict[str, Any]
"""One method on one text; `docs/evaluation.md` lists the fields."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method to evaluate, in which model, and the parameters that its rows name."""

    method: CacheMethod
    model: LanguageModel
    settings: Mapping[str, Any]


def method_names(wanted: str) -> list[str]:
    """The names in the comma-separated list `wanted`, each once; `all` stands for all; `UserError` for unknown ones."""
    all_methods = [*PEERS, *OWN_METHODS]
    known = [*all_methods, *INTEGER_METHODS]
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    for name in names:
        if name != "all" and name.partition(":")[0] not in known:
            raise UserError(f"unknown method {name!r}: there are all, {', '.join(known)}")
    if not names:
        raise UserError(f"no method given: there are all, {', '.join(known)}")
    return list(dict.fromkeys(part for name in names for part in (all_methods if name == "all" else [name])))


def candidates(model: Model, names: Sequence[str], settings: KvoSettings, *, progress: bool = True) -> list[Candidate]:
    """The methods `names`; DSQ and HCAP take `settings` and are calibrated on the calibration text."""
    made = []
    context = min(CALIBRATION_CONTEXT, model.config.context_length // 64 * 64)
    for name in names:
        base = name.partition(":")[0]
        if base in PEERS:
            peer = make_peer(name)
            named = {k: v for k, v in asdict(peer).items() if k != "name"}
            made.append(Candidate(method=peer, model=model, settings=named))
            continue
        own = override(replace(settings, prune=base != "kvo-dsq"), name)
        calibration = calibration_for(model, own, context=context, progress=progress)
        method: CacheMethod = KvoMethod(own, calibration, name)
        named = asdict(own)
        if base == "integer":
            method, named = Fp16(name=name), {}
        runs_in: LanguageModel = model
        if base in INTEGER_METHODS:
            named |= {"act_bits": ACTIVATION_BITS}
            runs_in = integer_model_for(model, calibration, progress=progress)
        made.append(Candidate(method=method, model=runs_in, settings=named))
    return made


def to_row(model: Model, candidate: Candidate, text: str, context: int, outcome: Score) -> Row:
    """The row of one outcome."""
    account = outcome.account
    return {
        "method": candidate.method.name,
        "text": text,
        "context": context,
        "model": model.config.name,
        "scored": len(outcome.nll),
        "stored_bits": account.stored_bits_per_element,
        "metadata_bits": account.metadata_bits_per_element,
        "read_fraction": account.read_fraction,
        **{f"read_fraction_{burst}": account.burst_fraction(burst) for burst in account.bursts},
        "metadata_read_fraction": account.metadata_bits_read / account.full_bits,
        "ppl": outcome.ppl,
        "ppl_reference": outcome.ppl_reference,
        "ppl_change_error": outcome.ppl_change_error,
        "kl": float(outcome.kl.mean()),
        "top1": float(outcome.top1.mean()),
        "settings": dict(candidate.settings),
        "seconds": round(outcome.seconds, 2),
    }


def evaluate(
    model: Model,
    methods: Sequence[Candidate],
    names: Sequence[str],
    context: int,
    scored: int,
    *,
    bursts: tuple[int, ...] = DEFAULT_BURSTS,
    known: Sequence[Row] = (),
    save: Path | None = None,
    progress: bool = True,
) -> list[Row]:
    """Every method on every text `names`, the last `scored` of `context` tokens each.

    Rows in `known` that are the same work are taken over. `save` is written after each row, with all that are there.
    """
    check_scored(scored, context)
    prefills = {name: prefill(model, name, context, progress=progress) for name in names}
    work = [(name, candidate) for name in names for candidate in methods]
    found = {
        place: _find(known, model, candidate, name, context, scored, bursts)
        for place, (name, candidate) in enumerate(work)
    }
    rows = {place: row for place, row in found.items() if row is not None}
    per_row, pace = steps(model, scored), 0.2 if sys.stderr.isatty() else 20
    total = per_row * len(work)
    with tqdm(total=total, initial=per_row * len(rows), unit="layer", mininterval=pace, disable=not progress) as bar:
        reference: tuple[str, Reference] | None = None
        for place, (name, candidate) in enumerate(work):
            if place in rows:
                continue
            bar.set_description(f"{candidate.method.name} on {name}", refresh=False)
            if reference is None or reference[0] != name:
                reference = None  # frees the one before
                reference = name, Reference.of(model, prefills[name], scored)
            outcome = score(candidate.model, candidate.method, reference[1], bursts, bar.update)
            rows[place] = to_row(model, candidate, name, context, outcome)
            if save is not None:
                save_rows(save, [rows[done] for done in sorted(rows)])
    finished = [rows[place] for place in range(len(work))]
    if save is not None:
        save_rows(save, finished)
    return finished


def _find(
    known: Sequence[Row],
    model: Model,
    candidate: Candidate,
    text: str,
    context: int,
    scored: int,
    bursts: tuple[int, ...],
) -> Row | None:
    """The row of `known` that this work would give again."""
    wanted = {
        "method": candidate.method.name,
        "text": text,
        "context": context,
        "model": model.config.name,
        "scored": scored,
        "settings": dict(candidate.settings),
    }
    for row in known:
        fractions = {key for key in row if key.startswith("read_fraction_")}
        if fractions == {f"read_fraction_{burst}" for burst in bursts} and all(
            row.get(k) == v for k, v in wanted.items()
        ):
            return row
    return None


def save_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write `rows` as a JSON list, one row a line; the file is complete at all times."""
    draft = path.with_name(path.name + ".partial")
    try:
        draft.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def load_rows(path: Path) -> list[Row]:
    """The rows that `save_rows` wrote, none when there is no file; `UserError` when it holds something else."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"cannot resume from {path}: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"cannot resume from {path}: it holds no list of rows")
    return rows


def table(rows: Sequence[Row]) -> str:
    """A table with one line per method: means over the texts, and the perplexity change of each text.

    The mean perplexity change is the one of the geometric mean perplexity.
    """
    names = list(dict.fromkeys(row["text"] for row in rows))
    bursts = [key for key in rows[0] if key.startswith("read_fraction_")]
    heads = ["method", "stored", "meta", "read", *(f"{key.rpartition('_')[2]} B" for key in bursts)]
    heads += [Path(name).name for name in names] + ["ppl mean", "KL", "top-1", "seconds"]
    lines = [heads]
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        changes = [math.log(row["ppl"] / row["ppl_reference"]) for row in own]
        by_text = {row["text"]: f"{100 * math.expm1(change):+.2f}%" for row, change in zip(own, changes, strict=True)}

        def mean(key: str, own: list[Row] = own) -> float:
            return math.fsum(row[key] for row in own) / len(own)

        line = [method, f"{mean('stored_bits'):.2f}", f"{mean('metadata_bits'):.3f}"]
        line += [f"{100 * mean(key):.2f}%" for key in ("read_fraction", *bursts)]
        line += [by_text.get(name, "") for name in names]
        line += [f"{100 * math.expm1(sum(changes) / len(changes)):+.2f}%", f"{mean('kl'):.5f}", f"{mean('top1'):.3f}"]
        lines.append([*line, f"{sum(row['seconds'] for row in own):.0f}"])
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


LEGEND = (
    "stored, meta: bits per K or V element; read: bits fetched against FP16, exact and in whole bursts; "
    "then perplexity change per text"
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    peers = ", ".join(PEERS)
    made = argparse.ArgumentParser(
        prog="python -m golden.evaluate",
        description="Evaluates KV cache methods on a language model: an exact float32 prefill, then the last tokens of "
        "the context decoded with the method's attention in every layer, against exact attention.",
        epilog="Prefills and calibration tables are kept in the user's cache folder, or in $KVO_CACHE. The table's "
        "means are over the texts. docs/evaluation.md describes the account, the methods and the JSON rows' fields.",
    )
    made.add_argument(
        "--model", metavar="FILE", help="GGUF file of a Llama-type model (default: SmolLM2-135M-Instruct)"
    )
    made.add_argument(
        "--text",
        action="append",
        metavar="T[,T...]",
        help=f"names of shipped texts or paths of UTF-8 files; may be repeated (default: {','.join(texts.names())})",
    )
    made.add_argument(
        "--context", type=int, default=4096, metavar="TOKENS", help="multiple of 64 (default: %(default)s)"
    )
    made.add_argument(
        "--method",
        action="append",
        metavar="NAME[,NAME...]",
        help=f"all, peers ({peers}), kvo-dsq (DSQ, everything fetched), kvo (DSQ+HCAP); beside "
        "these integer, integer-kvo (projections in the GEMM cores' integers, attention in float or with DSQ+HCAP); "
        "NAME:FIELD=VALUE[:...] changes a parameter, for example quest:fraction=0.1; may be repeated (default: all)",
    )
    made.add_argument(
        "--scored",
        type=int,
        default=512,
        metavar="TOKENS",
        help="last tokens of the context, decoded and scored; multiple of 64 (default: %(default)s)",
    )
    made.add_argument(
        "--burst",
        default=",".join(map(str, DEFAULT_BURSTS)),
        metavar="BYTES[,BYTES]",
        help="DRAM burst sizes that the traffic is rounded up to (default: %(default)s)",
    )
    made.add_argument("--settings", metavar="FILE", help="TOML file of DSQ and HCAP settings (default: the tuned ones)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write one row per method and text")
    made.add_argument("--plot", type=Path, metavar="FILE", help="plot traffic against loss (.png, .svg or .pdf)")
    made.add_argument("--resume", action="store_true", help="take over rows of the same work from the --json file")
    made.add_argument("--quiet", action="store_true", help="no progress bars")
    return made


@main_guard
def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    args = parser().parse_args(arguments)
    names = _split(args.text) or texts.names()
    wanted = method_names(",".join(args.method or ["all"]))
    try:
        bursts = check_bursts(tuple(int(size) for size in args.burst.split(",")))
    except ValueError:
        raise UserError(f"--burst takes sizes in bytes separated by commas, not {args.burst!r}") from None
    check_scored(args.scored, args.context)
    if args.resume and args.json is None:
        raise UserError("--resume needs the file that --json names")
    for path in (args.json, args.plot):
        if path is not None and not path.absolute().parent.is_dir():
            raise UserError(f"cannot write {path}: the folder {path.parent} does not exist")
    if args.plot is not None:
        from golden.plots import check_plot

        check_plot(args.plot)
    settings = KvoSettings.from_toml(args.settings) if args.settings else default_settings()
    known = load_rows(args.json) if args.resume else []
    for name in wanted:
        if name.partition(":")[0] in PEERS:
            make_peer(name)
        else:
            check_groups(override(settings, name).group_tokens, args.scored, args.context)
    model = load_model(args.model)
    progress = not args.quiet
    rows = evaluate(
        model,
        candidates(model, wanted, settings, progress=progress),
        names,
        args.context,
        args.scored,
        bursts=bursts,
        known=known,
        save=args.json,
        progress=progress,
    )
    print(
        f"{model.config.name}, {args.context} tokens, the last {args.scored} scored, {len(names)} text(s)\n{LEGEND}\n"
    )
    print(table(rows))
    if args.plot is not None:
        from golden.plots import plot_pareto

        plot_pareto(rows, args.plot)


def _split(values: Sequence[str] | None) -> list[str]:
    """Comma-separated values of a repeatable option, each once."""
    return list(dict.fromkeys(part.strip() for value in values or () for part in value.split(",") if part.strip()))


if __name__ == "__main__":
    main(sys.argv[1:])
