"""``leconvert fleet`` and its commands; ``convert`` is the default."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from leconvert.cli.main import end_on_signals
from leconvert.cli.options import (
    add_conversion_options,
    add_group,
    add_proof_options,
    add_push_options,
    add_push_wish,
    controlled,
    conversion_options,
    filled,
    local_path,
    path_or_url,
    push_of_each,
)
from leconvert.cli.output import former_line, print_sentence, progress_for, show, table
from leconvert.cli.parser import USUAL_OPTIONS, Parser, add_output
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.model.versions import V3_VERSION
from leconvert.run.conversion import Conversion
from leconvert.support.errors import BatchesFailedError, IncompleteError, UsageError
from leconvert.support.text import amount, count, guessed_duration
from leconvert.transfer.names import HubName
from leconvert.transfer.options import ScratchOptions

if TYPE_CHECKING:
    from leconvert.fleet import (
        FleetPrice,
        FleetStatus,
        FoundDataset,
        Line,
        PolicyRule,
        PricedDataset,
        SuggestedRule,
        Suggestion,
    )
    from leconvert.remote.source import HubGroup


def add_arguments(parser: Parser) -> None:
    """Declare the commands."""
    places = "fleet:convert fleet:report fleet:find fleet:suggest"
    parser.add_commands("fleet_command", {"": places}, usual=lambda _: "convert")


# ``leconvert fleet convert``.


_SHOWN = 20


def add_convert_arguments(parser: Parser) -> None:
    """Declare the options."""
    parser.usual_options = USUAL_OPTIONS
    parser.add_argument(
        "list", type=Path, metavar="LIST_FILE",
        help="a text file with one dataset a line: a folder, a glob, or ORG/NAME@REV on the Hub; "
            "options after a dataset apply to that dataset only",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output-dir", type=local_path, metavar="DIR",
        help="the folder for the results; each result becomes a subfolder with the name of its "
            "dataset (default: results are pushed to the Hub and not kept here)",
    )  # fmt: skip
    parser.add_argument(
        "--work-dir", type=Path, required=True, metavar="DIR",
        help=(
            "the folder for the state of the fleet, on a file system that all workers share; the "
            "fleet never removes it"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--policy", type=Path, metavar="FILE",
        help="a TOML file: which findings are repaired or accepted, in which datasets",
    )  # fmt: skip
    add_group(parser, EpisodeSelection)
    add_conversion_options(parser, may_append=True)
    add_group(parser, ScratchOptions)
    add_push_wish(parser, back=False)
    add_push_options(parser)
    parser.add_argument(
        "--plan-only", action="store_true",
        help="write the plan of the fleet, but start no workers; `leconvert work` or `leconvert "
            "submit` starts them",
    )  # fmt: skip
    scans = "scan all datasets and show the plan of the fleet; write nothing"
    add_output(parser, dry_run=scans, quiet=True)


def run_convert(options: argparse.Namespace) -> int:
    """Convert all datasets that can be converted, and print which were set aside."""
    from leconvert.fleet import (
        FleetObserver,
        Policy,
        convert_fleet,
        plan_fleet,
        price_fleet,
        read_list,
        read_policy,
    )

    conversion = conversion_options(options)
    progress = progress_for(options)
    policy = Policy()
    if options.policy is not None:
        policy = read_policy(options.policy, _read_flags)
    datasets = read_list(
        options.list,
        None if options.output_dir is None else options.output_dir.resolve(),
        _LineReader(options),
        say=progress.say,
    )
    work_dir = options.work_dir.resolve()
    if options.dry_run:
        with end_on_signals():  # temporary folders of migrations are removed
            price = price_fleet(datasets, work_dir, policy, conversion.scratch)
        return _show_price(options, price)
    with controlled(options) as control:
        plan = conversion.plan
        fleet = plan_fleet(datasets, work_dir, policy=policy, plan=plan, progress=progress)
        progress.say(
            f"Converting {count(len(datasets), 'dataset')} in the work dir {work_dir}. "
            f"`leconvert status {shlex.quote(str(work_dir))}` shows the progress. `leconvert work "
            f"{shlex.quote(str(work_dir))}` adds workers on any host."
        )
        if options.plan_only:
            if options.json:
                print(json.dumps(FleetObserver(fleet).look().as_record(), indent=2))
            return 0
        failures = convert_fleet(fleet, conversion, control)
    status = FleetObserver(fleet).look()
    show(options, status.as_record(), summary_lines(status))
    return _code(status, failures)


def _code(status: FleetStatus, failures: Sequence[str]) -> int:
    """Print on stderr what is left to do, and return the exit code."""
    if not status.is_settled:
        print_sentence("leconvert: Some datasets are not finished yet.", margin="  ")
        for line in failures:
            print_sentence(f"  {line}", margin="    ")
        print_sentence("  → Run the same command again to continue.", margin="    ")
        return IncompleteError.exit_code
    if status.set_aside:
        number = count(len(status.set_aside), "dataset was", "datasets were")
        print_sentence(
            f"leconvert: {number} set aside (not converted); all others are converted.", margin="  "
        )
        print_sentence(
            f"  → `leconvert status {shlex.quote(status.work_dir)}` says for each dataset what "
            f"helps. `leconvert fleet suggest {shlex.quote(status.work_dir)} > policy.toml` "
            "writes a policy with the options that lose no data; then run the same command "
            "again with --policy policy.toml.",
            margin="    ",
        )
        return BatchesFailedError.exit_code
    return 0


def summary_lines(status: FleetStatus) -> list[str]:
    """Return the number of datasets in each state, and the reasons of those set aside."""
    counts = {state.value: number for state, number in status.counts.items() if number}
    total = sum(one.source_bytes for one in status.datasets if one.state.value == "converted")
    said = ", ".join(f"{number:,} {state}" for state, number in counts.items())
    lines = [f"{count(len(status.datasets), 'dataset')}: {said}; {amount(total)} converted."]
    if status.set_aside:
        from leconvert.cli.status import set_aside_lines  # its imports take time

        lines += ["", *set_aside_lines(status, _SHOWN)]
    return lines


# Options after a dataset in the list, in addition to those of the command line; flags of a policy.


class _LineReader:
    """Parses a line of the list."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._usual = _options_of_each(options)
        self._parser = Parser(prog="leconvert fleet convert")
        self._parser.add_argument("dataset")
        self._parser.add_argument("--name", default=None)
        add_group(self._parser, LayoutOptions)
        add_group(self._parser, EpisodeSelection)
        add_group(self._parser, RepairOptions)
        add_proof_options(self._parser, may_delete=False)
        add_push_wish(self._parser, back=False)
        add_push_options(self._parser)

    def __call__(self, words: Sequence[str]) -> Line:
        from leconvert.fleet import Line

        if len(words) == 1 and not words[0].startswith("-"):
            return Line(words[0], None, self._usual)
        # A list option of the line extends the common list; any other option replaces the common
        # value.
        given = argparse.Namespace(**vars(self._options))
        found = self._parser.parse_args(words, given)
        return Line(found.dataset, found.name, _options_of_each(found))


def _options_of_each(options: argparse.Namespace) -> Conversion:
    """Return the conversion of each dataset, with its push."""
    from leconvert.dataset.findings import check_accepted

    conversion = conversion_options(options)
    check_accepted(conversion.repairs.accept)
    return replace(conversion, push=push_of_each(options))


def _read_flags(words: Sequence[str]) -> RepairOptions:
    from leconvert.dataset.findings import check_accepted

    parser = Parser(prog="leconvert fleet convert")
    add_group(parser, RepairOptions)
    repairs = filled(RepairOptions, parser.parse_args(list(words)))
    check_accepted(repairs.accept)
    return repairs


# The estimate for a fleet.


def _show_price(options: argparse.Namespace, price: FleetPrice) -> int:
    """Print the estimate for a fleet; return the exit code that its run would have."""
    show(options, price.as_record(), _price_lines(price))
    from leconvert.fleet import alike

    wrong = [one for one in price.datasets if one.stops_at]
    if not wrong:
        return 0
    print_sentence(
        f"leconvert: {count(len(wrong), 'dataset')} would be set aside (not converted).",
        margin="  ",
    )
    for names, message, step in alike(wrong, most=3)[:_SHOWN]:
        print_sentence(f"  {names}: {message}", margin="    ")
        print_sentence(f"    → {step}", margin="      ")
    return BatchesFailedError.exit_code


def _price_lines(price: FleetPrice) -> list[str]:
    from leconvert.cli.status import reason_lines  # its imports take time

    wrong = [one for one in price.datasets if one.stops_at]
    ready = [one for one in price.datasets if not one.stops_at and not one.is_finished]
    finished = len(price.datasets) - len(wrong) - len(ready)
    unseen = [one for one in ready if not one.is_scanned]
    stays = [one.moves for one in ready if one.moves is not None]
    lines = table(
        ("dataset", "episodes", "size", "files", "reason"),
        ((one.name, *_price_cells(one)) for one in price.datasets),
    )
    lines += [
        "",
        f"{count(len(ready), 'dataset')} to convert: {sum(one.episodes for one in ready):,} "
        f"episodes, {amount(sum(one.source_bytes for one in ready))} into "
        f"{sum(one.files for one in ready):,} files, in "
        f"{sum(one.batches for one in ready):,} batches.",
    ]
    if ready:
        seconds = sum(one.seconds for one in ready)
        lines.append(
            f"One worker would need about {guessed_duration(seconds)} on a disk that reads and "
            "writes 500 MB/s. As soon as workers run, `leconvert status` shows the remaining "
            "time, computed from the measured speed of the workers."
        )
    if unseen:
        lines.append(
            f"{count(len(unseen), 'dataset')} on the Hub: each is checked after its download, not "
            "now. Each worker needs local disk space of twice its largest dataset: up to "
            f"{amount(2 * max(one.source_bytes for one in unseen))}."
        )
    if stays:
        received = sum(moves.received + moves.to_fetch for moves in stays)
        lines.append(
            f"{count(len(stays), 'dataset')} of {amount(sum(moves.of for moves in stays))} whose "
            f"files stay on the Hub: {amount(received)} will be downloaded and about "
            f"{amount(sum(moves.to_send for moves in stays))} uploaded."
        )
    if finished:
        lines.append(f"{count(finished, 'dataset is', 'datasets are')} finished.")
    for folder, size_bytes in price.new_bytes.items():
        free = price.free_bytes[folder]
        room = "unknown" if free is None else amount(free)
        lines.append(f"Disk space in {folder}: about {amount(size_bytes)} needed, {room} free.")
    if price.former_states:
        lines.append(former_line(price.former_states, price.former_bytes))
    if wrong:
        lines.append(f"{count(len(wrong), 'dataset')} would be set aside (not converted):")
        lines += reason_lines("reason", price.why_set_aside())
    lines.append("Nothing was written.")
    return lines


def _price_cells(one: PricedDataset) -> tuple[object, ...]:
    if one.stops_at:
        return "-", "-", "-", ", ".join(one.stops_at)
    if one.is_finished:
        return "finished", "-", "-", ""
    return one.episodes, amount(one.source_bytes), one.files if one.is_scanned else "-", ""


# ``leconvert fleet report``.


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "work_dir", type=Path, metavar="WORK_DIR", help="the work dir of a fleet, finished or not"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("fleet.html"), metavar="FILE",
        help="the HTML page; the CSV file gets the same name with the ending .csv; existing files "
            "are replaced (default: fleet.html)",
    )  # fmt: skip
    add_output(parser)


def run_report(options: argparse.Namespace) -> int:
    """Write the page and the CSV file, and print their places."""
    from leconvert import fleet

    page = options.output.resolve()
    table = page.with_suffix(".csv")
    if table == page:
        raise UsageError(
            f"{page} ends in .csv, which is the ending of the CSV file.",
            path=str(page),
            next_step="Give a name that ends in .html.",
        )
    status = fleet.status(options.work_dir)
    fleet.write_fleet_report(status, page, table)
    lines = (
        f"{count(len(status.datasets), 'dataset')}, {len(status.set_aside):,} set aside (not "
        "converted).",
        f"  report  {options.output}",
        f"  CSV     {options.output.with_suffix('.csv')}",
    )
    return show(options, {"report": str(page), "csv": str(table), "run_id": status.run_id}, lines)


# ``leconvert fleet find``.


def add_find_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "root", type=path_or_url, metavar="FOLDER",
        help="where to look for datasets: a folder; or on the Hub hf://ORG (a user or an "
        "organisation), hf://collections/ORG/SLUG (a collection), hf://datasets/ORG/NAME (the "
        "folders of a repo), or the address of one of these pages",
    )  # fmt: skip
    parser.add_argument(
        "--no-scan", action="store_false", dest="scan",
        help="read only info.json of each dataset; the default is to check all its files, as "
            "`leconvert check` does; on the Hub only info.json is ever read",
    )  # fmt: skip
    add_output(parser)


def run_find(options: argparse.Namespace) -> int:
    """Print a list for `leconvert fleet`. Everything that cannot be converted is a comment."""
    from leconvert.fleet import find_datasets, find_on_hub, look_at_datasets

    if isinstance(options.root, str):
        datasets = find_on_hub(_group(options.root))
    else:
        root = options.root.resolve()
        datasets = look_at_datasets(root, find_datasets(root), scan=options.scan)
    if options.json:
        print(json.dumps({"datasets": [found.as_record() for found in datasets]}, indent=2))
        return 0
    number = unread = are_v3 = size_bytes = 0
    for found in datasets:
        number, size_bytes = number + 1, size_bytes + found.size_bytes
        unread += found.problem is not None
        are_v3 += found.problem is None and found.is_left_out
        print("\n".join(_found_lines(found)), flush=True)
    also = ""
    if left_out := unread + are_v3:
        told = {
            f"{are_v3:,} already v3.0": are_v3,
            f"{unread:,} not usable for the reason given": unread,
        }
        why = ", ".join(words for words, some in told.items() if some)
        also = f" {count(left_out, 'dataset is', 'datasets are')} commented out: {why}."
    print(f"# {count(number, 'dataset')}, {amount(size_bytes)}.{also}")
    return 0


def _group(url: str) -> HubGroup | HubName:
    from leconvert.remote.source import parse_group

    group = parse_group(url) or HubName.parse(url, bare=False)
    if group is None:
        raise UsageError(
            f"{url} is not an address of datasets on the Hub.",
            path=url,
            next_step="Give hf://ORG, hf://collections/ORG/SLUG, hf://datasets/ORG/NAME for the "
            "folders of a repo, or the address of one of these pages.",
        )
    return group


def _found_lines(found: FoundDataset) -> list[str]:
    """Return the line of a dataset, and below it the findings.

    The name in the fleet is the path below the folder. No other dataset has it.
    """
    words = [found.name]
    if isinstance(found.source, Path):
        words = [str(found.source)]
        if found.name != found.source.name:
            words += ["--name", found.name]
    line = shlex.join(words)
    if found.is_left_out:
        line = f"# {_one_line(line)}"
    episodes = "" if found.episodes is None else f"{count(found.episodes, 'episode')}, "
    lines = [f"{found.version or 'no version'}, {episodes}{amount(found.size_bytes)}"]
    if found.problem is not None:
        lines.append(f"  {found.problem}")
    elif found.version == V3_VERSION:
        anew = ", but has errors; a conversion writes it again" if found.errors else ""
        lines.append(f"  is {found.version} already{anew}")
    for severity, codes in (("error", found.errors), ("warning", found.warnings)):
        if codes:
            said = ", ".join(f"{code} ({times})" for code, times in codes.items())
            lines.append(f"  {count(sum(codes.values()), severity)}: {said}")
    lines += [f"  helps: {remedy}" for remedy in found.remedies]
    first, *others = (f"# {_one_line(line)}" for line in lines)
    return [f"{line}  {first}", *others]


# ``leconvert fleet suggest``.


def add_suggest_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("work_dir", type=Path, metavar="WORK_DIR", help="the work dir of a fleet")
    add_output(parser)


def run_suggest(options: argparse.Namespace) -> int:
    """Print a policy for `leconvert fleet --policy`, and in comments what each rule changes."""
    from leconvert.fleet import FleetObserver, open_fleet, suggest_policy

    fleet = open_fleet(options.work_dir.resolve(), only_look=True)
    suggestion = suggest_policy(fleet, FleetObserver(fleet).look())
    lines = _suggestion_lines(suggestion, number_given=len(fleet.policy.rules))
    return show(options, suggestion.as_record(), lines)


def _suggestion_lines(suggestion: Suggestion, number_given: int) -> Iterator[str]:
    from leconvert.fleet import alike

    well = len(suggestion.converts)
    number = count(well + len(suggestion.stays), "dataset was", "datasets were")
    if well:
        yield f"# {number} set aside (not converted). This policy converts {well:,} of them."
        yield "# It loses no data: every frame stays, and so does every feature that has data."
    else:
        yield f"# {number} set aside (not converted)."
        yield "# leconvert knows no policy that converts one of them without a loss of data."
    yield "# To use this file, run the command of the fleet again with --policy and its name."
    for rule in suggestion.policy.rules[:number_given]:
        yield from ("", "# This rule is from the fleet's present policy.", *_rule_lines(rule))
    for one in suggestion.rules:
        yield from ("", *_said_of(one), *_rule_lines(one.rule))
    if suggestion.stays:
        yield from (
            "",
            f"# {count(len(suggestion.stays), 'dataset stays', 'datasets stay')} set aside with "
            "this policy:",
        )
    for names, message, step in alike(suggestion.stays, most=3):
        yield from (f"# {_one_line(f'{names}: {message}')}", f"#   {_one_line(step)}")
    if suggestion.lossy:
        yield from (
            "",
            "# The rules below leave data out. Uncomment a rule to allow it.",
        )
    for one in suggestion.lossy:
        yield from ("", *_said_of(one), *(f"#{line}" for line in _rule_lines(one.rule)))


def _said_of(one: SuggestedRule) -> tuple[str, str]:
    named = ", ".join(one.datasets[:3]) + ("" if len(one.datasets) <= 3 else ", ...")
    changes = f"{one.changes[0].upper()}{one.changes[1:]}."
    return f"# {count(len(one.datasets), 'dataset')}: {_one_line(named)}", f"# {changes}"


def _rule_lines(rule: PolicyRule) -> Iterator[str]:
    """Yield the lines of the rule in TOML. JSON's strings are also TOML strings."""
    yield "[[rule]]"
    if rule.datasets != ("*",):
        yield f"datasets = {json.dumps(rule.datasets)}"
    if rule.findings:
        yield f"findings = {json.dumps(rule.findings)}"
    yield f"flags = {json.dumps(rule.flags)}"


def _one_line(text: str) -> str:
    """Return a text for a comment; TOML allows no control characters there."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
