"""What a scan sees, and what it says of a source that cannot be converted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

import leconvert
from leconvert.dataset.formats.v2 import SourcePaths, load_info
from leconvert.dataset.scan import scan_source
from leconvert.model.repairs import RepairOptions
from leconvert.support.errors import SourceError, UnreadableSourceError
from leconvert.support.parallel import Spread
from leconvert.testing import edit_lines

FIRST_CLIP = "videos/chunk-000/observation.images.top/episode_000000.mp4"


def test_the_number_of_threads_does_not_change_a_scan(small_source: Path) -> None:
    one, many = (scan_source(small_source, spread=Spread(threads=n)) for n in (1, 8))
    assert one.only.meta_digest == many.only.meta_digest
    for left, right in zip(one.streams, many.streams, strict=True):
        assert left.files.mtime_ns.tolist() == right.files.mtime_ns.tolist()
        assert left.roll_bytes.tolist() == right.roll_bytes.tolist()


def test_a_decimal_frame_rate_is_an_exact_fraction(
    source_copy: Path, edit_json: Callable[..., None]
) -> None:
    edit_json(source_copy / "meta/info.json", fps=29.97)
    assert load_info(source_copy).fps == Fraction(2997, 100)


@pytest.mark.parametrize("relative", [FIRST_CLIP, "data/chunk-000/episode_000000.parquet"])
@pytest.mark.parametrize("keep_bytes", [0, 100])
def test_a_truncated_file_is_a_finding_and_the_scan_goes_on(
    source_copy: Path, relative: str, keep_bytes: int
) -> None:
    path = source_copy / relative
    path.write_bytes(path.read_bytes()[:keep_bytes])
    (source_copy / "data/chunk-000/episode_000004.parquet").unlink()
    codes = [(finding.code, finding.episode) for finding in scan_source(source_copy).findings]
    assert codes == [("unreadable-file", 0), ("missing-file", 4)]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"fps": True}, "fps True"),
        ({"fps": 0}, "fps 0"),
        ({"features": []}, "has no features"),
        ({"features": {"../x": {"dtype": "video"}}}, ("whose name cannot be the name of a folder")),
        ({"chunks_size": 0}, "chunks_size 0"),
        ({"data_path": 3}, "no data_path template"),
        ({"robot_type": "arm \ud800"}, "half a surrogate pair"),
        ({"told": json.loads("[" * 100 + "]" * 100)}, "is nested too deeply"),
    ],
)
def test_an_info_that_cannot_be_used_says_why(
    source_copy: Path, edit_json: Callable[..., None], changes: dict[str, object], sentence: str
) -> None:
    edit_json(source_copy / "meta/info.json", **changes)
    with pytest.raises(SourceError, match=r"info\.json|already") as caught:
        load_info(source_copy)
    assert sentence in caught.value.message
    assert caught.value.next_step


def test_what_has_no_tables_of_v2_is_v3_or_unknown(
    source_copy: Path, edit_json: Callable[..., None]
) -> None:
    (source_copy / "meta/episodes.jsonl").unlink()
    edit_json(source_copy / "meta/info.json", codebase_version="v3.0")
    scan = scan_source(source_copy)  # all of it follows from tasks.jsonl, rows and frames
    assert scan.only.codebase_version == "v3.0"
    errors = {each.code for each in scan.findings if each.severity == "error"}
    assert errors == {"path-template", "missing-stats"}
    (source_copy / "meta/tasks.jsonl").unlink()
    with pytest.raises(SourceError, match="meta/episodes contains no file"):
        scan_source(source_copy)
    edit_json(source_copy / "meta/info.json", codebase_version=None)
    with pytest.raises(SourceError, match=r"has no codebase_version in .*. leconvert reads v2\.0"):
        scan_source(source_copy)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("data/{number}.parquet", "unknown placeholder {number}"),
        ("data/{episode_index.__class__}", "unknown placeholder"),
        ("data/all.parquet", "without {episode_index}"),
        ("data/{episode_index", "malformed"),
        ("../{episode_index}.parquet", "leads outside"),
        ("/data/{episode_index}.parquet", "leads outside"),
    ],
)
def test_a_path_template_that_cannot_be_used_says_why(
    source_copy: Path, edit_json: Callable[..., None], template: str, sentence: str
) -> None:
    edit_json(source_copy / "meta/info.json", data_path=template)
    with pytest.raises(SourceError) as caught:
        SourcePaths(source_copy, load_info(source_copy))
    assert sentence in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("episodes.jsonl", "", "lists no episodes"),
        ("episodes.jsonl", "{", "is not JSON"),
        ("episodes.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("episodes.jsonl", '{"episode_index": "0"}\n', "integer episode_index"),
        ("tasks.jsonl", '{"task_index": 0}\n', "text task"),
        (
            "episodes.jsonl",
            '{"episode_index": 0, "told": ' + "[" * 40 + "]" * 40 + "}\n",
            "gives episode 0 a value that is nested too deeply",
        ),
        (
            "episodes.jsonl",
            '{"episode_index": 0, "length": 12, "tasks": [], "episode_index": 1}\n',
            "gives episode 0 a second episode_index",
        ),
        ("episodes.jsonl", '\n\n{"episode_index": 0, "length":\n', ("is not JSON")),
        (
            "episodes.jsonl",
            '{"episode_index": 0, "length": 12, "tasks": ["\\ud800"]}\n',
            "contains invalid text (half a surrogate pair)",
        ),
        (
            "tasks.jsonl",
            '{"task_index": 0, "task": "Pick \\udfff up."}\n',
            "contains invalid text (half a surrogate pair)",
        ),
    ],
)
def test_a_malformed_table_is_named_with_its_line(
    source_copy: Path, name: str, content: str, sentence: str
) -> None:
    (source_copy / "meta" / name).write_text(content)
    with pytest.raises(SourceError) as caught:
        scan_source(source_copy)
    assert sentence in caught.value.message
    assert name in caught.value.message
    assert caught.value.next_step
    # The parser sees one line at a time, and takes each for the first.
    assert caught.value.message.count("line ") <= 1


COMPUTED = RepairOptions(recompute_stats=True)


def test_a_malformed_table_of_statistics_is_not_needed_where_they_are_computed(
    source_copy: Path, tmp_path: Path
) -> None:
    for content, sentence in (
        ('{"episode_index": 0, "stats": {}\n', "is not JSON"),
        ('\n{"episode_index": 0, "stats": [}\n', "is not JSON"),
        ('{"stats": {}}\n', "line 1 needs an integer episode_index"),
        ('{"episode_index": 0, "stats": {}}\n' * 2, "lists episode 0 twice"),
        (
            '{"episode_index": 0, "stats": {}, "episode_index": 1}\n',
            "gives episode 0 a second episode_index",
        ),
    ):
        (source_copy / "meta/episodes_stats.jsonl").write_text(content)
        findings = scan_source(source_copy).findings
        assert {(f.code, f.severity, f.remedy) for f in findings} == {
            ("missing-stats", "error", "--fill-stats")
        }
        assert any(sentence in finding.message for finding in findings)
        assert {f.severity for f in scan_source(source_copy, COMPUTED).findings} == {"repaired"}
    out = tmp_path / "out"
    leconvert.convert(source_copy, output=out, repairs=COMPUTED)
    assert leconvert.verify_pair(out, source_copy, depth="bytes").ok


def test_malformed_statistics_of_what_is_not_declared_are_left_out_where_all_are_computed(
    source_copy: Path, tmp_path: Path
) -> None:
    for stats in (
        [0],
        {"min": [0]},
        {"min": ["a"], "max": [1], "mean": [1], "std": [0], "count": [1]},
    ):
        edit_lines(
            source_copy, "episodes_stats", lambda lines, x=stats: lines[1]["stats"].update(x=x)
        )
        [finding] = scan_source(source_copy).findings
        assert (finding.code, finding.severity) == ("missing-stats", "error")
        assert finding.remedy == "--recompute-stats"
        assert "statistics of x for episode 1 are not numbers" in finding.message
        assert "error" not in {f.severity for f in scan_source(source_copy, COMPUTED).findings}
    out = tmp_path / "out"
    leconvert.convert(source_copy, output=out, repairs=COMPUTED)
    assert "x" not in json.loads((out / "meta/stats.json").read_bytes())
    assert leconvert.verify_pair(out, source_copy, depth="bytes").ok


def test_sound_statistics_of_what_is_not_declared_are_kept(source_copy: Path) -> None:
    sound = {"min": 0, "max": [1], "mean": [0.5], "std": [0], "count": [3]}
    edit_lines(
        source_copy,
        "episodes_stats",
        lambda lines: [line["stats"].update({"x": sound, "a": {"b": sound}}) for line in lines],
    )
    assert scan_source(source_copy).findings == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        *(
            (lambda lines, key=key: lines[2].update({key: [0.0]}), f"gives episode 2 the key {key}")
            for key in ("stats/action/min", "meta/episodes/chunk_index")  # v3.0 has a use for them
        ),
        (lambda lines: lines.append(lines[2]), "lists episode 2 twice"),
    ],
)
def test_lines_of_episodes_that_v30_cannot_hold_are_refused(
    source_copy: Path, change: Callable[[list[dict[str, object]]], object], said: str
) -> None:
    edit_lines(source_copy, "episodes", change)
    with pytest.raises(SourceError, match=said) as caught:
        scan_source(source_copy)
    assert caught.value.next_step


def test_lines_may_stand_in_any_order_with_blank_lines_between(source_copy: Path) -> None:
    path = source_copy / "meta/episodes.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n\n".join(reversed(lines)) + "\n")
    assert scan_source(source_copy).length.tolist() == [12, 7, 1, 9, 15]


def test_a_folder_that_is_no_dataset_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSourceError, match="not a LeRobot dataset"):
        scan_source(tmp_path)
    with pytest.raises(UnreadableSourceError, match="is not a folder"):
        scan_source(tmp_path / "nothing")
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text("[1, 2]")
    with pytest.raises(SourceError, match="does not contain a JSON object"):
        load_info(tmp_path)


def test_files_that_keep_a_scan_waiting_are_waited_for_together(
    small_source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leconvert import tables
    from leconvert.dataset.scan import v2

    together = threading.Barrier(4)
    real = tables.DataFile
    opened: set[str] = set()

    def slow(path: str) -> tables.DataFile:
        if "episode_000004" not in path and path not in opened:
            opened.add(path)
            together.wait(timeout=30)  # broken unless four episodes are read at the same time
        return real(path)

    monkeypatch.setattr(v2, "_EPISODES_PER_BLOCK", 1)
    monkeypatch.setattr(tables, "DataFile", slow)
    assert scan_source(small_source, spread=Spread(threads=4)).length.tolist() == [12, 7, 1, 9, 15]
