"""The top of the page: what was converted, how far it is, sizes before and after."""

from __future__ import annotations

import shlex

from leconvert.report.charts import figure, size_chart
from leconvert.report.markup import Content, Markup, element
from leconvert.report.parts import facts, folded, name, section, table, when
from leconvert.report.timeline import working_axis
from leconvert.report.values import AttemptEnd, Story, StoryState
from leconvert.text import amount, count, duration

__all__ = ["conversion_section", "header"]

_SIGNS = {
    StoryState.FINISHED: "✓",
    StoryState.DIFFERS: "✕",
    StoryState.FAILED: "✕",
    StoryState.TO_PACK: "…",
    StoryState.UNFINISHED: "…",
    StoryState.RESULT_ONLY: "i",
}
_KINDS = {
    StoryState.FINISHED: "good",
    StoryState.DIFFERS: "bad",
    StoryState.FAILED: "bad",
}


def header(story: Story) -> Markup:
    """Return the heading, the state in a word and a sentence, and the figures that matter most."""
    state = element(
        "p",
        element("span", _SIGNS[story.state], aria_hidden="true", class_="mark"),
        " ",
        story.state.value.capitalize(),
        class_=f"state {_KINDS.get(story.state, 'plain')}",
    )
    return element(
        "header",
        element("p", "leconvert report", class_="kicker"),
        element("h1", element("bdi", story.name or "dataset")),
        state,
        element("p", _sentence(story), class_="lead"),
        element("dl", [_tile(*tile) for tile in _tiles(story)], class_="tiles"),
    )


def _tile(term: str, value: str, remark: str | None) -> Markup:
    small = element("span", remark, class_="remark") if remark else None
    return element("div", element("dt", term), element("dd", value, small))


def _tiles(story: Story) -> list[tuple[str, str, str | None]]:
    tiles: list[tuple[str, str, str | None]] = [
        ("Episodes", f"{story.episodes:,}", f"{count(story.frames, 'frame')}")
    ]
    before, after = story.source_bytes, story.result_bytes
    if before is None:
        tiles.append(("Size", amount(after), count(story.result_files, "file")))
    else:
        tiles.append(("Before", amount(before), count(story.source_files or 0, "file")))
        label = "After" if story.state is StoryState.FINISHED else "So far"
        tiles.append((label, amount(after), count(story.result_files, "file")))
    axis = working_axis(story)
    if axis is not None:
        seconds = axis.busy_seconds
        done = sum(a.source_bytes for a in story.attempts if a.end is AttemptEnd.DONE)
        rate = f"{amount(done / seconds)}/s in all" if done else None
        tiles.append(("Work", f"{seconds:.1f} s" if seconds < 10 else duration(seconds), rate))
    if story.batches is not None:
        workers = len({a.token for a in story.attempts})
        hosts = len({a.host for a in story.attempts})
        who = f"{count(workers, 'worker')} on {count(hosts, 'host')}" if workers else None
        done_of = f"{story.batches.done:,} of {story.batches.total:,}"
        tiles.append(("Batches done", done_of, who))
    if story.attempts:
        again = sum(a.end is not AttemptEnd.DONE and a.end is not AttemptEnd.HELD
                    for a in story.attempts)  # fmt: skip
        tiles.append(
            ("Extra tries", f"{again:,}", "errors, losses, hand-backs" if again else "none needed")
        )
    return tiles


def _sentence(story: Story) -> Content:
    match story.state:
        case StoryState.FINISHED:
            if story.verification is None or not story.verification.ok:
                return "The v3.0 dataset is in its place. It was not compared with its source."
            what = "every byte" if story.verification.depth == "bytes" else "its structure"
            return f"The v3.0 dataset is in its place, and {what} matched the source."
        case StoryState.DIFFERS:
            return "The new tree does not match its source. Nothing was replaced."
        case StoryState.FAILED:
            failed = story.batches.failed if story.batches else 0
            return (
                f"{count(failed, 'batch was', 'batches were')} set aside; the rest is done. Mend "
                "what the tries below name; then leconvert release "
                f"{shlex.quote(story.work_dir or 'WORK_DIR')} --failed gives them back."
            )
        case StoryState.TO_PACK:
            return "Every batch is done. The result has not been put into its place yet."
        case StoryState.UNFINISHED:
            return (
                "Batches are missing: the run is under way, or was interrupted. The same command "
                "goes on where it ended."
            )
    return (
        "Only the result itself was read. Who did what when, and what was proven, is in the run's "
        "work dir, which is not here (--keep-work-dir keeps it)."
    )


def conversion_section(story: Story) -> Markup:
    """Return what was converted, with which options, and each stream before and after."""
    known = story.source_bytes is not None
    axis = working_axis(story)
    rows: list[tuple[str, Content]] = [
        ("Source", None if story.source is None else name(story.source)),
        ("Result", name(story.target)),
        ("Kept source", None if story.kept_source is None else name(story.kept_source)),
        ("Work dir", None if story.work_dir is None else name(story.work_dir)),
        ("Run", None if story.run_id is None else name(story.run_id)),
        ("Worked from", None if axis is None else f"{when(axis.began)} to {when(axis.ended)}"),
        ("Dataset", f"{count(story.episodes, 'episode')}, {count(story.frames, 'frame')} at "
                    f"{story.fps or '?'} frames/s"),
        ("Video bytes", _video(story)),
        ("Peak memory", _memory(story)),
        ("Other files", None if not story.other_files else
         f"{count(story.other_files, 'file')}, {amount(story.other_bytes)} (meta/ and the like)"),
        ("Options", ", ".join(f"{key} {value}" for key, value in story.options.items()) or None),
    ]  # fmt: skip
    parts: list[Content] = [facts("What was converted", rows)]
    if story.streams:
        words = _sizes_in_words(story)
        chart = size_chart("sizes", story.streams, words)
        head = ["Stream"]
        head += ["Files before", "Bytes before"] if known else []
        head += ["Files after", "Bytes after"]
        lines: list[list[Content]] = []
        for stream in story.streams:
            line: list[Content] = [name(stream.stream)]
            if known:
                line += [f"{stream.source_files:,}", f"{stream.source_bytes:,}"]
            planned = stream.planned_files
            whole = stream.result_files == planned
            line += [
                f"{planned:,}" if whole else f"{stream.result_files:,} of {planned:,}",
                f"{stream.result_bytes:,}",
            ]
            lines.append(line)
        numbers = table("Streams, in bytes", head, lines, numbers=range(1, len(head)))
        parts += [figure(chart, caption=words, name="sizes"), folded("Sizes as a table", numbers)]
    return section("conversion", "What was converted", parts)


def _memory(story: Story) -> str | None:
    told = [
        f"{amount(peak)} {who}"
        for who, peak in (
            ("a worker's process at most", story.worker_peak_bytes),
            ("the packer's", story.packer_peak_bytes),
        )
        if peak is not None
    ]
    return ", ".join(told) or None


def _video(story: Story) -> str | None:
    if not story.cloned_bytes and not story.copied_bytes:
        return None
    return (
        f"{amount(story.cloned_bytes)} shared with the source, {amount(story.copied_bytes)} copied"
    )


def _sizes_in_words(story: Story) -> str:
    streams = count(len(story.streams), "stream")
    after = f"{amount(story.result_bytes)} in {count(story.result_files, 'file')}"
    if story.source_bytes is None:
        return f"{streams}: {after}."
    before = f"{amount(story.source_bytes)} in {count(story.source_files or 0, 'file')}"
    when = "after" if story.state is StoryState.FINISHED else "so far"
    return f"{streams}: {before} before, {after} {when}."
