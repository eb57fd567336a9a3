"""The options that commands share. Each flag is declared once, and fills one options object.

The ``dest`` of a flag is the name of its field. A flag that is not given is absent from the
namespace, so the default of the object holds. `filled` makes the object.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leconvert.cli.main import stop_on_signals
from leconvert.cli.output import progress_for
from leconvert.cli.parser import OptionalValue, Settings, hide
from leconvert.model.repairs import RepairOptions
from leconvert.model.selection import EpisodeSelection
from leconvert.model.values import LayoutOptions
from leconvert.run.conversion import (
    Control,
    Conversion,
    LeaseOptions,
    PlanOptions,
    ProofOptions,
    WorkerOptions,
)
from leconvert.run.engines import BUILT_IN, EngineNames, make_engine, parse_engine_options
from leconvert.run.engines.options import RayOptions, Site, SlurmOptions, site_from
from leconvert.support.errors import UsageError
from leconvert.support.flags import flags_of
from leconvert.transfer.names import HubName
from leconvert.transfer.options import PushOptions, ScratchOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from leconvert.run.engines import Engine

# From the parsed arguments to options objects.


def add_flags(
    parser: argparse._ActionsContainer,
    kind: type[DataclassInstance],
    names: Sequence[str] | None = None,
    *,
    without: Collection[str] = (),
    **said: str,
) -> list[argparse.Action]:
    """Add the flags of an options class, and return them.

    Args:
        names: Fields whose flags are added, in this order; None for all in the order of the class.
        without: Fields whose flags are left out.
        said: Other help for the flags of these fields.
    """
    known = {told.field: told for told in flags_of(kind) if told.field not in without}
    added = []
    for told in known.values() if names is None else map(known.__getitem__, names):
        named: dict[str, Any] = {"dest": told.field, "help": said.get(told.field, told.help)}
        if told.may_be_negated:
            named["action"] = argparse.BooleanOptionalAction
        elif told.is_switch:
            named["action"] = f"store_{'false' if told.default else 'true'}"
        else:
            named |= {"metavar": told.metavar, "type": told.read, "choices": told.choices}
            named |= {"action": "append"} if told.default == () else {}
        added.append(parser.add_argument(*told.names, **named))
    return added


# The heading of each class in the help, and a line below it.
_HEADINGS: dict[type, tuple[str, str | None]] = {
    EpisodeSelection: ("selection", "episode numbers are those of the source"),
    LayoutOptions: ("layout", None),
    LeaseOptions: ("leases", None),
    PlanOptions: ("runs", None),
    ProofOptions: ("proof and replacement", None),
    RepairOptions: (
        "repairs",
        "nothing is repaired or changed without one of these options",
    ),
    ScratchOptions: ("files downloaded from the Hub", None),
}


def add_group(
    parser: argparse.ArgumentParser,
    kind: type[DataclassInstance],
    about: str | None = None,
    **how: Any,
) -> argparse._ArgumentGroup:
    """Add the flags of a class below its heading. A flag that is not given sets no attribute."""
    title, usual = _HEADINGS[kind]
    group = parser.add_argument_group(title, about or usual, argument_default=argparse.SUPPRESS)
    add_flags(group, kind, **how)
    return group


def as_typed(options: argparse.Namespace, flag: str) -> str:
    """Return the flag as the user typed it: ``--slurm nodes`` for ``--nodes``."""
    return str(getattr(options, "typed", {}).get(flag, flag))


def given_flags(options: argparse.Namespace, kind: type[DataclassInstance]) -> list[str]:
    """Return the flags of a class that were given."""
    return [told.name for told in flags_of(kind) if hasattr(options, told.field)]


def filled[Options: DataclassInstance](
    kind: type[Options], options: argparse.Namespace, **otherwise: Any
) -> Options:
    """Return an options object with every field that was given on the command line.

    Args:
        otherwise: Fields that get another value here if they are not given.
    """
    given = {
        field.name: tuple(value) if isinstance(value, list) else value
        for field in fields(kind)
        if (value := getattr(options, field.name, None)) is not None
    }
    return kind(**{**otherwise, **given})


def works_only(flag: str, where: str, instead: str | None = None) -> UsageError:
    """Return the error for an option without effect; ``instead`` says what gives it one."""
    step = f"{instead}, or leave {flag} out." if instead else f"Leave {flag} out."
    return UsageError(f"{flag} works only {where}.", next_step=step)


# Options of workers: leases, versions and patience.


# Nobody watches workers on other hosts: they keep trying for this long if a disk or a mount fails.
UNWATCHED_SECONDS = 120.0


def lease_options(
    options: argparse.Namespace, *, trouble_seconds: float = UNWATCHED_SECONDS
) -> LeaseOptions:
    """Return the options of leases."""
    return filled(LeaseOptions, options, trouble_seconds=trouble_seconds)


# Types of arguments that are paths.


def path_or_url(text: str) -> Path | str:
    """Return a path, or a URL unchanged: as a path, it would lose a slash."""
    return text if "://" in text else Path(text)


def local_path(text: str) -> Path:
    """Return a path, and refuse a URL where a folder is needed."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is a URL, not a folder; convert into a folder, then upload it with `leconvert "
            "push`"
        )
    return Path(text)


def local_dataset(text: str) -> Path:
    """Return the path of a dataset that is read or changed where it is, and refuse a URL."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is a URL, not a folder; copy the dataset to this machine first"
        )
    return Path(text)


# Options of a plan, for ``plan`` and ``convert``: source, target and layout.


def exclude(one: object, other: str) -> UsageError:
    """Return the error for two options of which only one may be given."""
    return UsageError(f"{one} and {other} exclude each other.", next_step="Give one of them.")


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add source, target and layout; see `leconvert.cli.sources.take_arguments`."""
    parser.add_argument(
        "dataset", nargs="?", metavar="DATASET",
        help="the dataset: a folder, ORG/NAME on the Hub, or a URL",
    )  # fmt: skip
    parser.add_argument(
        "result", nargs="?", type=local_path, metavar="OUTPUT",
        help="the folder for the result; the same as --output",
    )  # fmt: skip
    parser.add_argument(
        "--repo-id",
        metavar="ORG/NAME",
        help="the dataset's name on the Hub; ORG/NAME/PATH for a dataset in a folder of a repo; "
        "its folder here is --root (default: $HF_LEROBOT_HOME/ORG/NAME); if that does not exist, "
        "the dataset is downloaded to it",
    )
    parser.add_argument(
        "--revision",
        metavar="REV",
        help="tag, branch or commit of --repo-id on the Hub (default: the tag v2.1 or v2.0, "
        "else main)",
    )
    parser.add_argument(
        "--root",
        type=path_or_url,
        metavar="DIR|URL",
        help="the dataset's folder, which holds meta/, data/ and videos/; or its URL, such as "
        "hf://datasets/ORG/NAME@REV or s3://BUCKET/NAME",
    )
    add_target(parser, "the source", "<root>_old")
    add_group(parser, LayoutOptions)
    for kind in (ScratchOptions, EpisodeSelection, RepairOptions, PlanOptions):
        add_group(parser, kind)


def add_target(parser: argparse.ArgumentParser, source: str, kept: str) -> None:
    """Add ``--output`` and ``--work-dir`` of a command that can convert in place."""
    parser.add_argument(
        "-o",
        "--output",
        type=local_path,
        metavar="DIR",
        help=f"the folder for the result; {source} then stays as it is (default: the result takes "
        f"the place of {source}, which is kept as {kept})",
    )
    add_work_dir(parser)


def add_keep_work_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--keep-work-dir``."""
    parser.add_argument(
        "--keep-work-dir",
        action="store_true",
        help="keep the work dir, with the run's records, after success",
    )


def add_work_dir(parser: argparse.ArgumentParser, beside: str = "target") -> None:
    """Add ``--work-dir``."""
    parser.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="the folder for the run's state, on a file system that all workers share (default: a "
        f"hidden folder beside the {beside})",
    )


# The comparison before the swap, and what happens to the source afterwards.


VERIFY_WITHOUT_DELETE = (
    "how the result is compared with the source before it is put in place (default: structure)"
)


def add_proof_options(
    parser: argparse.ArgumentParser, *, may_delete: bool = True, may_wait: bool = False
) -> None:
    """Add the depth of the comparison, and whether a result or a source may be replaced."""
    left_out = {"delete_source": may_delete, "max_wait_seconds": may_wait}
    said = {} if may_delete else {"verify": VERIFY_WITHOUT_DELETE}
    group = add_group(
        parser,
        ProofOptions,
        without=[name for name, is_wanted in left_out.items() if not is_wanted],
        **said,
    )
    hide(group.add_argument("--no-verify", action="store_const", const="none", dest="verify"))


# ``--report``, and the place of its page.


def add_report_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--report``; `report_place` reads it."""
    parser.add_argument(
        "--report", type=Path, action=OptionalValue, looks_right=_is_page, otherwise="",
        metavar="FILE.html",
        help="write an HTML report, also if the run fails after planning (default: "
            "<target>.report.html); write --report=FILE if the name does not end in .html",
    )  # fmt: skip


def _is_page(word: str) -> bool:
    """Return whether the word after ``--report`` is the page, not a dataset or output folder.

    A wrong guess would decide where a dataset goes, so an unclear word is refused.
    """
    if word.lower().endswith((".html", ".htm")):
        return True
    is_name = word.count("/") == 1 and HubName.parse(word) == HubName(word)
    on_the_hub = is_name and not Path(word).parent.is_dir()
    if not word or word.startswith("-") or "://" in word or Path(word).is_dir() or on_the_hub:
        return False
    raise UsageError(
        f"The word {word!r} after --report can mean the report or a dataset.",
        next_step=f"Write --report={shlex.quote(word)} for the report. Put a dataset or an output "
        "folder before the options.",
    )


def report_place(given: Path | None, target: Path) -> Path | None:
    """Return the place for the page of ``--report``; None if it was not given."""
    if given is None:
        return None
    from leconvert.report.page import default_report_place  # its imports take time

    return default_report_place(target) if given == Path() else given.resolve()


# Options of SLURM jobs, declared once.


# Flags that Ray has, too.
_OF_RAY_TOO = ("--nodes", "--workers-per-node", "--cpus-per-task", "--mem")


def add_slurm_worker_options(
    parser: argparse.ArgumentParser, *, title: str = "SLURM", of_ray: bool = False
) -> None:
    """Add the resources that workers get from SLURM, and Ray."""
    group = parser.add_argument_group(title, argument_default=argparse.SUPPRESS)
    for_slurm = [*add_flags(group, SlurmOptions), *add_flags(group, Site)]
    asked = "a resource of the workers' SLURM jobs"
    group.add_argument("--slurm", action=Settings, actions=for_slurm, prefix="slurm-", help=asked)
    for_ray = add_flags(group, RayOptions) if of_ray else []
    if of_ray:
        shared = [each for each in for_slurm if each.option_strings[-1] in _OF_RAY_TOO]
        asked = "a resource of the workers' Ray tasks"
        group.add_argument(
            "--ray", action=Settings, actions=[*shared, *for_ray], prefix="ray-", help=asked
        )
    hide(*for_slurm, *for_ray)


def slurm_options(options: argparse.Namespace) -> SlurmOptions:
    """Return the resources that workers get from SLURM, as given or from the environment."""
    return filled(SlurmOptions, options, site=site(options))


def ray_options(options: argparse.Namespace) -> RayOptions:
    """Return the resources that workers get from Ray."""
    workers = None if options.num_workers == "auto" else options.num_workers
    return filled(RayOptions, options, workers=workers)


# Options of engines from other packages.


def add_added_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of engines from other packages."""
    parser.add_argument(
        "--engine-option", action="append", default=[], metavar="KEY=VALUE",
        help="an option of an engine that a separate Python package adds; may be given several "
            "times",
    )  # fmt: skip


def check_whose_options(options: argparse.Namespace) -> None:
    """Refuse an option that belongs to another engine."""
    given = [*given_flags(options, SlurmOptions), *given_flags(options, Site)]
    engines_of = {flag: ("slurm", "ray") if flag in _OF_RAY_TOO else ("slurm",) for flag in given}
    engines_of |= dict.fromkeys(given_flags(options, RayOptions), ("ray",))
    for flag, engines in engines_of.items():
        if options.engine not in engines:
            typed = as_typed(options, flag)
            added = " or ".join(f"--engine {engine}" for engine in engines)
            raise works_only(typed, f"with --engine {' or '.join(engines)}", f"Add {added}")
    if options.engine_option and options.engine in (None, *BUILT_IN):
        raise UsageError(
            f"--engine-option {options.engine_option[0]} works only with an engine that a "
            f"separate Python package adds. The engines {', '.join(BUILT_IN[:-1])} and "
            f"{BUILT_IN[-1]} do not use it.",
            next_step=(f"--engine {options.engine} has its own options, which --help-all lists.")
            if options.engine
            else "Add --engine NAME with the name of such an engine.",
        )


# Options of all engines, declared once.


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the engine of a conversion, and the number of workers."""
    parser.add_argument(
        "--engine", choices=EngineNames(BUILT_IN), metavar="NAME",
        help="how workers run: %(choices)s; inline: threads of this process; local: processes of "
            "this machine (default: local for many small files, else inline)",
    )  # fmt: skip
    hide(add_flags(parser, WorkerOptions)[0])  # --orchestrate is --engine local
    add_added_options(parser)
    add_slurm_worker_options(parser, title="SLURM and Ray", of_ray=True)


def worker_options(options: argparse.Namespace) -> WorkerOptions:
    """Return the engine and the workers of a conversion."""
    check_whose_options(options)
    return WorkerOptions(
        orchestrate=_in_processes(options),
        num_workers=options.num_workers,
        max_workers=options.max_workers,
        engine=_engine(options),
    )


def _engine(options: argparse.Namespace) -> Engine | None:
    if options.engine in (None, "inline", "local"):
        return None
    if options.engine == "slurm":
        from leconvert.run.engines import SlurmEngine

        return SlurmEngine(slurm_options(options))
    if options.engine == "ray":
        from leconvert.run.engines import RayEngine

        return RayEngine(ray_options(options))
    return make_engine(options.engine, parse_engine_options(options.engine_option))


def _in_processes(options: argparse.Namespace) -> bool | None:
    """Return whether the options ask for processes or threads; None if they do not say."""
    asked: bool | None = options.orchestrate
    word = "--no-orchestrate" if asked is False else "--orchestrate"
    if options.engine is not None:
        by_engine = options.engine != "inline"
        if asked not in (None, by_engine):
            raise exclude(f"--engine {options.engine}", word)
        asked, word = by_engine, f"--engine {options.engine}"
    if asked and options.max_workers is not None:
        raise UsageError(
            f"{word} starts worker processes, and --max-workers counts threads.",
            next_step="Write --num-workers N instead of --max-workers N.",
        )
    if asked is False and options.num_workers is not None:
        raise UsageError(
            f"{word} works in threads, and --num-workers counts processes.",
            next_step="Write --max-workers N instead of --num-workers N.",
        )
    return asked


def site(options: argparse.Namespace) -> Site:
    """Return account, partition and program, as given or from the environment."""
    return site_from(os.environ, filled(Site, options))


# Options of a push, for ``convert`` and ``push``.


def add_push_wish(parser: argparse.ArgumentParser, *, back: bool = True) -> None:
    """Add whether to push at all. ``back``: by default, push to the repo of the source."""
    usual = "yes, if the source came from the Hub" if back else "no push"
    parser.add_argument(
        "--push-to-hub", action=OptionalValue, looks_right=_is_wish, otherwise="true",
        metavar="true|false",
        help=f"push the result to the Hub (default: {usual})",
    )  # fmt: skip
    parser.add_argument("--no-push", action="store_true", help="never write to the Hub")


def add_push_options(parser: argparse.ArgumentParser, *, of_several: bool = False) -> None:
    """Add the place and the manner of a push."""
    group = parser.add_argument_group("push", "see docs/hub.md", argument_default=argparse.SUPPRESS)
    nowhere = "no push" if of_several else "the repo that the source came from"
    group.add_argument(
        "--push-repo-id", default=None, metavar="ORG/NAME",
        help=f"push to this repo on the Hub; it is made if it does not exist (default: {nowhere})",
    )  # fmt: skip
    add_flags(group, PushOptions)


def push_of_each(options: argparse.Namespace) -> PushOptions | None:
    """Return the push of each dataset of a fleet; None for no push."""
    asked, refused = _push_wish(options)
    # After a dataset in the list, --no-push cancels the repo of the command line.
    if refused and asked == "--push-to-hub":
        raise exclude(refused, asked)
    return push_options(options, options.push_repo_id) if asked and not refused else None


def _is_wish(word: str) -> bool:
    return word.lower() in ("true", "false")


def _push_wish(options: argparse.Namespace) -> tuple[str | None, str | None]:
    """Return the option that asks for a push, and the option that forbids it; None if not given."""
    wish = None if options.push_to_hub is None else str(options.push_to_hub).lower()
    if wish is not None and not _is_wish(wish):
        raise UsageError(
            f"--push-to-hub takes true or false, not {options.push_to_hub!r}.",
            next_step="Write --push-to-hub=true or --push-to-hub=false.",
        )
    asking = {
        "--push-to-hub": wish == "true",
        "--push-repo-id": options.push_repo_id is not None,
        "--create-pr": hasattr(options, "create_pr"),
    }
    forbidding = {"--no-push": options.no_push, "--push-to-hub=false": wish == "false"}
    asked, refused = (
        next((flag for flag, is_given in each.items() if is_given), None)
        for each in (asking, forbidding)
    )
    return asked, refused


def push_target(
    options: argparse.Namespace, layout: LayoutOptions, came_from: str | None
) -> str | None:
    """Return the repo to push to; None for no push. ``came_from`` is the repo of the source."""
    asked, refused = _push_wish(options)
    if asked and refused:
        raise exclude(refused, asked)
    local = options.root is not None or options.output is not None
    if refused or (not asked and local):
        _refuse_push_options(options)
    to = layout.to
    is_of_hub = not local and (came_from or options.repo_id) is not None
    if to != "v3.0" and options.push_repo_id is None and not refused and (asked or is_of_hub):
        raise UsageError(
            f"By default, a {to} dataset is not pushed to the repo of its source, since the push "
            "would replace the v3.0 dataset in that repo.",
            next_step="Add --push-repo-id ORG/NAME to push to ORG/NAME, or add --no-push.",
        )
    if refused or (not asked and (came_from is None or local)):
        return None
    found = options.push_repo_id or came_from or options.repo_id
    if found is None:
        raise UsageError(
            "The repo for the push is not given.", next_step="Add --push-repo-id ORG/NAME."
        )
    push_options(options, str(found))  # refuse contradictions before any work
    return str(found)


def named_push_target(options: argparse.Namespace) -> str | None:
    """Return the repo to push to, for a command that pushes only to a named repo."""
    if options.push_repo_id is None:
        _refuse_push_options(options)
        return None
    push_options(options, options.push_repo_id)
    return str(options.push_repo_id)


def _refuse_push_options(options: argparse.Namespace) -> None:
    for flag in given_flags(options, PushOptions):
        where = "with a push, and this command pushes nothing"
        raise works_only(flag, where, "Add --push-repo-id ORG/NAME")


def push_options(options: argparse.Namespace, repo_id: str | None) -> PushOptions:
    """Return the place and the manner of a push."""
    # The repo of the source exists, or its name is a mistake: only a named repo is made.
    named = options.push_repo_id is not None or getattr(options, "push_to_hub", None) is not None
    # Here --repo-id is the name of the source.
    return replace(filled(PushOptions, options, create=named), repo_id=repo_id)


# Options of commands that convert, but name sources or episodes in their own ways.


def add_conversion_options(parser: argparse.ArgumentParser, *, may_append: bool = False) -> None:
    """Add the options of a conversion; `conversion_options` reads them."""
    add_group(parser, LayoutOptions, without=() if may_append else ("append",))
    add_group(parser, RepairOptions)
    add_group(parser, PlanOptions)
    add_engine_options(parser)
    add_group(parser, LeaseOptions, without=("trouble_seconds",))
    add_proof_options(parser, may_delete=False)


def conversion_options(
    options: argparse.Namespace, selection: EpisodeSelection | None = None
) -> Conversion:
    """Return all options of a conversion. An option that a command does not have is the default."""
    workers = worker_options(options) if hasattr(options, "engine") else WorkerOptions()
    layout = filled(LayoutOptions, options)
    if hasattr(options, "loader_workers") and layout.layout != "streaming":
        raise works_only("--loader-workers", "with --layout streaming", "Add --layout streaming")
    return Conversion(
        layout=layout,
        repairs=filled(RepairOptions, options),
        selection=filled(EpisodeSelection, options) if selection is None else selection,
        plan=filled(PlanOptions, options),
        workers=workers,
        leases=lease_options(
            options, trouble_seconds=0.0 if workers.engine is None else UNWATCHED_SECONDS
        ),
        proof=filled(ProofOptions, options),
        scratch=filled(ScratchOptions, options),
    )


@contextmanager
def controlled(options: argparse.Namespace) -> Iterator[Control]:
    """Yield how the command is stopped, by signals, and how it shows progress."""
    with stop_on_signals() as stop:
        progress = progress_for(options)
        yield Control(stop=stop, progress=progress, command=options.command_line)
